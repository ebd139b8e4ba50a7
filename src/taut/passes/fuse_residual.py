"""residual + linear(x) becomes a linear that adds the residual's row as it writes its own."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options
from taut.passes.quantize import QUANTIZED


def requires(graph: Graph) -> None:
    assert not any(node.attrs.get("add") for node in graph.nodes), "sums are fused already"


def run(graph: Graph, options: Options) -> Graph:
    fused = {node.name: _fused(graph, node, linear) for node in graph.nodes if (linear := _linear_of(graph, node)) is not None}
    gone = {node.origin[0].name for node in fused.values()}
    return graph.rebuilt(fused.get(node.name, node) for node in graph.nodes if node.name not in gone)


def _linear_of(graph: Graph, node: Node) -> Node | None:
    """The linear whose result only this add reads; the second operand's where both are."""
    if node.op != "add":
        return None
    producers, users = graph.producers(), graph.users()
    for name in reversed(node.inputs):
        linear = producers[name]
        if linear.op in QUANTIZED and not linear.attrs.get("gated") and users[name] == [node] and name not in graph.outputs:
            return linear
    return None


def _fused(graph: Graph, add: Node, linear: Node) -> Node:
    residual = add.inputs[1 - add.inputs.index(linear.outputs[0])]
    attrs = MappingProxyType({**linear.attrs, "add": True})
    return Node(linear.name, linear.op, (*linear.inputs, residual), add.outputs, linear.weights, attrs, (linear, add))


def ensures(graph: Graph) -> None:
    assert all(_linear_of(graph, node) is None for node in graph.nodes)
