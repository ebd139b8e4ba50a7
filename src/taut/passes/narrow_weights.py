"""Every linear keeps its weights in 16 bits: half the bytes to read, the arithmetic stays fp32.

A weight is rounded once, to nearest even; the kernel widens it exactly. Everything else stays as it was.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options

STORES = {"fp16": "f16", "bf16": "bf16"}


def requires(graph: Graph) -> None:
    assert all(node.op != "linear_q8" for node in graph.nodes), "the graph is quantized already"


def run(graph: Graph, options: Options) -> Graph:
    return graph.rebuilt(_narrow(node, STORES[options.precision]) for node in graph.nodes)


def _narrow(node: Node, store: str) -> Node:
    """The node on narrow weights, and what it was fused from too."""
    if node.op != "linear":
        return node
    origin = tuple(_narrow(part, store) for part in node.origin)
    return replace(node, attrs=MappingProxyType({**node.attrs, "store": store}), origin=origin)


def ensures(graph: Graph) -> None:
    assert all(node.attrs.get("store") in STORES.values() for node in graph.nodes if node.op == "linear")
