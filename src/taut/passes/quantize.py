"""Linears on int8 or int4 weights and int8 inputs: the input is quantized once for all linears of one kind that read it, the weight when
it is packed (quant/schemes), or was when the artefact was made.

Norms, embeddings' lookup, attention and the residual stream stay fp32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from taut.graph import Graph, Node, Value
from taut.graph.node import Attr
from taut.ops import Signature
from taut.passes.options import Options
from taut.quant.formats import SCHEMES, input_group
from taut.quant.schemes import int8
from taut.quant.schemes.static import Calibrated

QUANTIZED = ("linear_q8", "linear_q4")


@dataclass(frozen=True)
class Target:
    """What a linear becomes: the op, the scale group of its input, that of an int8 weight (0: by output channel), and how the input is
    quantized where that was calibrated."""

    op: str
    group: int
    weight_group: int = 0
    static: Calibrated | None = None

    def input_attrs(self) -> dict[str, Attr]:
        """Of the node that quantizes the input."""
        if self.static is None:
            return {"group": self.group}
        return {"group": self.group, "scale": self.static.scale, "offset": self.static.offset}

    def linear_attrs(self) -> dict[str, Attr]:
        attrs: dict[str, Attr] = {"group": self.group}
        if self.weight_group:
            attrs["weight_group"] = self.weight_group
        if self.static is not None:
            attrs["static"] = True
        return attrs


def requires(graph: Graph) -> None:
    assert all(node.op not in ("quantize", *QUANTIZED) for node in graph.nodes), "the graph is quantized already"


def run(graph: Graph, options: Options) -> Graph:
    nodes: list[Node] = []
    values: dict[str, Value] = {}
    for node in graph.nodes:
        target = _target(graph, node, options)
        if target is not None:
            x = node.inputs[0]
            signature = graph.signature(x)
            quantized = _name(x, signature.features, target, options)
            if quantized not in values:
                values[quantized] = Value(quantized, Signature(signature.features, signature.space, "q8"))
                attrs = MappingProxyType(target.input_attrs())
                nodes.append(Node(quantized, "quantize", (x,), (quantized,), (), attrs))
            node = _quantized(node, quantized, target)
        nodes.append(node)
    return graph.rebuilt(nodes, values.values())


def _target(graph: Graph, node: Node, options: Options) -> Target | None:
    scheme = options.scheme_of(graph, node) if node.op == "linear" else "fp32"
    format_ = SCHEMES[scheme]
    if format_.inputs == "float":
        return None
    k = graph.signature(node.inputs[0]).features
    if format_.weight == "int4":
        return Target("linear_q4", format_.group)
    if format_.inputs == "static":
        return Target("linear_q8", 0, static=options.static_of(node))
    group = _group(k, options) if not format_.group else input_group(scheme, k)
    return Target("linear_q8", group, format_.group)


def _group(k: int, options: Options) -> int:
    group = int8.default_group(k) if options.group is None else options.group
    return group if group and k % group == 0 else 0


def _name(x: str, features: int, target: Target, options: Options) -> str:
    if target.static is not None:
        return f"{x}.q8.static.{target.static.scale:.9g}.{target.static.offset:.9g}"
    return f"{x}.q8" if target.group == _group(features, options) else f"{x}.q8.{target.group}"


def _quantized(node: Node, quantized: str, target: Target) -> Node:
    """The quantized node, and what it was fused from too: decomposing must compute the same numbers."""
    if node.op != "linear":
        return node
    origin = tuple(_quantized(part, quantized, target) for part in node.origin)
    attrs = MappingProxyType({**node.attrs, **target.linear_attrs()})
    return replace(node, op=target.op, inputs=(quantized,), attrs=attrs, origin=origin)


def ensures(graph: Graph) -> None:
    for node in graph.nodes:
        assert node.op not in QUANTIZED or graph.signature(node.inputs[0]).dtype == "q8"
