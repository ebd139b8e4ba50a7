"""A norm or gate whose result is quantized writes the quantized row itself; the fp32 row is stored only where somebody else reads it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.fuse_add_norm import NORMS
from taut.passes.options import Options


def requires(graph: Graph) -> None:
    assert not any(_writes_quantized(node) for node in graph.nodes if node.op in NORMS)


def _writes_quantized(node: Node) -> bool:
    return int(node.attrs.get("group", -1)) >= 0


def run(graph: Graph, options: Options) -> Graph:
    users, fused, gone = graph.users(), {}, set()
    for node in graph.nodes:
        if not ((node.op in NORMS and not node.attrs.get("head_dim")) or node.op == "swiglu"):
            continue
        out = node.outputs[-1]
        quantizers = [n for n in users[out] if n.op == "quantize"]
        shared = len(users[out]) > 1 or out in graph.outputs
        if len(quantizers) == 1 and not (shared and node.op == "swiglu"):
            fused[node.name] = _fused(node, quantizers[0], shared)
            gone.add(quantizers[0].name)
    return graph.rebuilt(fused.get(node.name, node) for node in graph.nodes if node.name not in gone)


def _fused(node: Node, quantizer: Node, shared: bool) -> Node:
    changes = dict(quantizer.attrs)
    if node.op in NORMS:
        changes |= {"add": bool(node.attrs.get("add")), "store_sum": bool(node.attrs.get("store_sum")), "store_out": shared}
    outputs = (*(node.outputs if shared else node.outputs[:-1]), *quantizer.outputs)
    return replace(node, outputs=outputs, attrs=MappingProxyType({**node.attrs, **changes}), origin=(node, quantizer))


def ensures(graph: Graph) -> None:
    producers = graph.producers()
    for node in graph.nodes:
        if node.op == "quantize":
            source = producers[node.inputs[0]]
            assert source.op not in NORMS or _writes_quantized(source) or source.attrs.get("head_dim")
