"""Linears of precision int8 or int4: the input is quantized once for all linears of one scale group that read it, the weight when it is
packed (quant/schemes).

Norms, embeddings' lookup, attention and the residual stream stay fp32. With int4 weights, what reads selected rows instead of tokens
(the head, whose table may be the embedding's, and an encoder's pooler) stays int8, and so does a linear whose inputs fit no group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType

from taut.graph import Graph, Node, Value
from taut.ops import Signature
from taut.passes.options import Options
from taut.quant.schemes import int4, int8

QUANTIZED = ("linear_q8", "linear_q4")


@dataclass(frozen=True)
class Target:
    """What a linear becomes: the op, and the scale group of its input (and int4 weight)."""

    op: str
    group: int


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
            quantized = _name(x, signature.features, target.group, options)
            if quantized not in values:
                values[quantized] = Value(quantized, Signature(signature.features, signature.space, "q8"))
                attrs = MappingProxyType({"group": target.group})
                nodes.append(Node(quantized, "quantize", (x,), (quantized,), (), attrs))
            node = _quantized(node, quantized, target)
        nodes.append(node)
    return graph.rebuilt(nodes, values.values())


def _target(graph: Graph, node: Node, options: Options) -> Target | None:
    precision = options.precision_of(node) if node.op == "linear" else ""
    if not precision.startswith("int"):
        return None
    x = graph.signature(node.inputs[0])
    group = int4.group_for(x.features, int(precision.partition("-g")[2] or 0)) if x.space == "tokens" else 0
    return Target("linear_q4", group) if group else Target("linear_q8", _group(x.features, options))


def _group(k: int, options: Options) -> int:
    group = int8.default_group(k) if options.group is None else options.group
    return group if group and k % group == 0 else 0


def _name(x: str, features: int, group: int, options: Options) -> str:
    return f"{x}.q8" if group == _group(features, options) else f"{x}.q8.{group}"


def _quantized(node: Node, quantized: str, target: Target) -> Node:
    """The quantized node, and what it was fused from too: decomposing must compute the same numbers."""
    if node.op != "linear":
        return node
    origin = tuple(_quantized(part, quantized, target) for part in node.origin)
    attrs = MappingProxyType({**node.attrs, "group": target.group})
    return replace(node, op=target.op, inputs=(quantized,), attrs=attrs, origin=origin)


def ensures(graph: Graph) -> None:
    for node in graph.nodes:
        assert node.op not in QUANTIZED or graph.signature(node.inputs[0]).dtype == "q8"
