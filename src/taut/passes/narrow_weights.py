"""Linears of precision fp16, bf16 or w8a16 keep their weights in 16 or 8 bits: a half or a quarter of the bytes to read.

A weight is rounded once, to nearest even; whether the kernel widens it or multiplies in bf16 is the plan's choice.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options

STORES = {"fp16": "f16", "bf16": "bf16", "w8a16": "i8"}


def requires(graph: Graph) -> None:
    assert all("store" not in node.attrs for node in graph.nodes), "the weights are narrow already"


def run(graph: Graph, options: Options) -> Graph:
    return graph.rebuilt(_narrow(node, _store(graph, node, options)) for node in graph.nodes)


def _store(graph: Graph, node: Node, options: Options) -> str | None:
    return STORES.get(options.scheme_of(graph, node)) if node.op == "linear" else None


def _narrow(node: Node, store: str | None) -> Node:
    """The node on narrow weights, and what it was fused from too."""
    if node.op != "linear" or store is None:
        return node
    origin = tuple(_narrow(part, store) for part in node.origin)
    return replace(node, attrs=MappingProxyType({**node.attrs, "store": store}), origin=origin)


def ensures(graph: Graph) -> None:
    assert all(node.op == "linear" for node in graph.nodes if "store" in node.attrs)
