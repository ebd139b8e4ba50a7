"""Every linear becomes int8: its input is quantized once for all linears that read it, its weight per output channel.

Norms, embeddings' lookup, attention and the residual stream stay fp32.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node, Value
from taut.ops import Signature
from taut.passes.options import Options
from taut.quant.schemes import int8


def requires(graph: Graph) -> None:
    assert all(node.op not in ("quantize", "linear_q8") for node in graph.nodes), "the graph is quantized already"


def run(graph: Graph, options: Options) -> Graph:
    nodes: list[Node] = []
    values: dict[str, Value] = {}
    for node in graph.nodes:
        if node.op == "linear":
            x = node.inputs[0]
            group = _group(graph.signature(x).features, options)
            quantized = f"{x}.q8"
            if quantized not in values:
                signature = Signature(graph.signature(x).features, graph.signature(x).space, "q8")
                values[quantized] = Value(quantized, signature)
                nodes.append(Node(quantized, "quantize", (x,), (quantized,), (), MappingProxyType({"group": group})))
            node = _to_int8(node, quantized, group)
        nodes.append(node)
    return graph.rebuilt(nodes, values.values())


def _group(k: int, options: Options) -> int:
    group = int8.default_group(k) if options.group is None else options.group
    return group if group and k % group == 0 else 0


def _to_int8(node: Node, quantized: str, group: int) -> Node:
    """The node on int8, and what it was fused from too: decomposing must compute the same numbers."""
    if node.op != "linear":
        return node
    origin = tuple(_to_int8(part, quantized, group) for part in node.origin)
    return replace(
        node, op="linear_q8", inputs=(quantized,), attrs=MappingProxyType({**node.attrs, "group": group}), origin=origin
    )


def ensures(graph: Graph) -> None:
    assert all(node.op != "linear" for node in graph.nodes)
