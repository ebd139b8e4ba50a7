"""swiglu(gate_up(x)) becomes a gated linear: gate and up columns of one index share a panel, so their product is made in registers.

The weight's rows are interleaved when it is packed; neither a value of twice the width nor a pass over it is left.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node, Weight
from taut.ops.epilogue import HALF
from taut.passes.options import Options
from taut.passes.quantize import QUANTIZED


def requires(graph: Graph) -> None:
    assert not any(node.attrs.get("gated") for node in graph.nodes), "linears are gated already"
    assert all(int(node.attrs.get("group", -1)) < 0 for node in graph.nodes if node.op == "swiglu"), (
        "fuse before fuse_norm_quant"
    )


def run(graph: Graph, options: Options) -> Graph:
    producers, fused, weights = graph.producers(), {}, []
    for node in graph.nodes:
        if node.op == "swiglu" and _fits(graph, linear := producers[node.inputs[0]]):
            fused[node.name] = _fused(linear, node)
            weights += [_interleaved(graph.weights[key]) for key in linear.weights]
    gone = {node.origin[0].name for node in fused.values()}
    return graph.rebuilt((fused.get(node.name, node) for node in graph.nodes if node.name not in gone), (), weights)


def _fits(graph: Graph, linear: Node) -> bool:
    """A quantized linear of two weights whose rows fill half panels, which only its swiglu reads."""
    if linear.op not in QUANTIZED or linear.attrs.get("act") or len(graph.users()[linear.outputs[0]]) != 1:
        return False
    sources = [graph.weights[key].sources for key in linear.weights]
    return all(len(names) == 2 for names in sources) and graph.signature(linear.outputs[0]).features % (2 * HALF) == 0


def _interleaved(weight: Weight) -> Weight:
    return replace(weight, interleave=HALF)


def _fused(linear: Node, swiglu: Node) -> Node:
    attrs = MappingProxyType({**linear.attrs, "act": swiglu.attrs["act"], "gated": True})
    return Node(linear.name, linear.op, linear.inputs, swiglu.outputs, linear.weights, attrs, (linear, swiglu))


def ensures(graph: Graph) -> None:
    producers = graph.producers()
    assert not any(node.op == "swiglu" and _fits(graph, producers[node.inputs[0]]) for node in graph.nodes)
