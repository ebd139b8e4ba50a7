"""Builder: how a model file writes its mathematics. Shapes are inferred and checked as nodes are added."""

from __future__ import annotations

from types import MappingProxyType

from taut import ops
from taut.graph.node import Attr, Graph, Node, Value, Weight
from taut.ops.rope import RopeTable


class Builder:
    """Collects nodes. Each method named after an op adds one node and returns the name of its output value."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._values: dict[str, Value] = {}
        self._weights: dict[str, Weight] = {}
        self._constants: dict[str, RopeTable] = {}

    def weight(self, key: str, *shape: int) -> str:
        """Declare a weight; declaring a key twice shares it (tied embeddings)."""
        declared = self._weights.setdefault(key, Weight(key, shape))
        assert declared.shape == shape, f"weight {key} declared as {declared.shape} and {shape}"
        return key

    def constant(self, key: str, table: RopeTable) -> str:
        self._constants[key] = table
        return key

    def add_node(self, op: str, name: str, inputs: tuple[str, ...], weights: tuple[str, ...] = (), **attrs: Attr) -> str:
        assert name not in self._values, f"value {name} is defined twice"
        shapes = [self._weights[w].shape if w in self._weights else self._constants[w].shape for w in weights]
        try:
            (signature,) = ops.find(op).infer([self._values[i].signature for i in inputs], shapes, attrs)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        self._nodes.append(Node(name, op, inputs, (name,), weights, MappingProxyType(attrs)))
        self._values[name] = Value(name, signature)
        return name

    def embed(self, name: str, table: str, *, index: str = "ids", offset: int = 0) -> str:
        return self.add_node("embed", name, (), (table,), index=index, offset=offset)

    def linear(self, name: str, x: str, weight: str, bias: str = "") -> str:
        return self.add_node("linear", name, (x,), (weight, bias) if bias else (weight,))

    def linear_of(self, name: str, x: str, outputs: int, *, bias: bool) -> str:
        """A linear whose weights are named after it."""
        weight = self.weight(f"{name}.weight", outputs, self._values[x].signature.features)
        return self.linear(name, x, weight, self.weight(f"{name}.bias", outputs) if bias else "")

    def rms_norm(self, name: str, x: str, eps: float, *, head_dim: int = 0) -> str:
        width = head_dim or self._values[x].signature.features
        return self.add_node("rms_norm", name, (x,), (self.weight(f"{name}.weight", width),), eps=eps, head_dim=head_dim)

    def layer_norm(self, name: str, x: str, eps: float) -> str:
        width = self._values[x].signature.features
        weights = (self.weight(f"{name}.weight", width), self.weight(f"{name}.bias", width))
        return self.add_node("layer_norm", name, (x,), weights, eps=eps)

    def unary(self, op: str, name: str, x: str, **attrs: Attr) -> str:
        return self.add_node(op, name, (x,), (), **attrs)

    def binary(self, op: str, name: str, a: str, b: str) -> str:
        return self.add_node(op, name, (a, b))

    def finish(self, *outputs: str) -> Graph:
        return Graph(
            tuple(self._nodes),
            MappingProxyType(dict(self._values)),
            MappingProxyType(dict(self._weights)),
            MappingProxyType(dict(self._constants)),
            outputs,
        )
