"""Graph, Node, Value, Weight. Knows nothing of files, devices or kernels.

Every activation is (tokens, features), ragged over sequences: a batch is the concatenation of its sequences, without padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from taut.ops import Signature
from taut.ops.rope import RopeTable

Attr = int | float | str | bool


@dataclass(frozen=True)
class Value:
    """A named result of a node."""

    name: str
    signature: Signature


@dataclass(frozen=True)
class Weight:
    """A declared weight: `shape` as in the checkpoint. `sources` names the declared weights whose rows it joins (fused linears): one
    after the other or, where `interleave` is not 0, so many rows of each in turn."""

    key: str
    shape: tuple[int, ...]
    sources: tuple[str, ...] = ()
    interleave: int = 0

    @property
    def layout(self) -> tuple[object, ...]:
        """What determines its rows, beside its name."""
        return self.sources, self.interleave


@dataclass(frozen=True)
class Node:
    """One operation. `origin` holds the nodes that a fused node replaced; empty for a primitive one."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    origin: tuple[Node, ...] = ()

    def decompose(self) -> Iterator[Node]:
        """The primitive nodes that compute the same values, in order: itself when it is primitive."""
        if not self.origin:
            yield self
        for node in self.origin:
            yield from node.decompose()


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order. `constants` are tables computed, not loaded; they are used like weights."""

    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    weights: Mapping[str, Weight]
    constants: Mapping[str, RopeTable]
    outputs: tuple[str, ...]

    def users(self) -> dict[str, list[Node]]:
        """For each value, the nodes that read it."""
        found: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in node.inputs:
                found[name].append(node)
        return found

    def producers(self) -> dict[str, Node]:
        """For each value, the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs}

    def signature(self, value: str) -> Signature:
        return self.values[value].signature

    def weight_shape(self, key: str) -> tuple[int, ...]:
        """Shape of a weight or a constant."""
        return self.weights[key].shape if key in self.weights else self.constants[key].shape

    def rebuilt(self, nodes: Iterable[Node], values: Iterable[Value] = (), weights: Iterable[Weight] = ()) -> Graph:
        """This graph with other nodes; `values` and `weights` are added, and what no node names any more is dropped."""
        kept = tuple(nodes)
        known = {**self.values, **{value.name: value for value in values}}
        declared = {**self.weights, **{weight.key: weight for weight in weights}}
        named = {name for node in kept for name in (*node.inputs, *node.outputs)}
        used = {key for node in kept for key in node.weights}
        used |= {source for key in used if key in declared for source in declared[key].sources}
        return replace(
            self,
            nodes=kept,
            values=MappingProxyType({name: value for name, value in known.items() if name in named}),
            weights=MappingProxyType({key: weight for key, weight in declared.items() if key in used}),
            constants=MappingProxyType({key: table for key, table in self.constants.items() if key in used}),
        )
