"""act(linear(x)) becomes a linear with an epilogue: the GEMM's result meets bias and activation while in registers."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.ops.activation import FUNCTIONS
from taut.passes.options import Options


def requires(graph: Graph) -> None:
    assert all(node.op != "quantize" for node in graph.nodes), "fuse before quantizing"


def run(graph: Graph, options: Options) -> Graph:
    users, fused = graph.users(), {}
    for node in graph.nodes:
        readers = users[node.outputs[0]]
        if node.op == "linear" and not node.attrs.get("act") and len(readers) == 1 and readers[0].op in FUNCTIONS:
            attrs = MappingProxyType({**node.attrs, "act": readers[0].op})
            outputs = readers[0].outputs
            fused[node.name] = Node(readers[0].name, "linear", node.inputs, outputs, node.weights, attrs, (node, readers[0]))
    gone = {node.name for node in fused.values()}
    return graph.rebuilt(fused.get(node.name, node) for node in graph.nodes if node.name not in gone)


def ensures(graph: Graph) -> None:
    producers, users = graph.producers(), graph.users()
    for node in graph.nodes:
        if node.op in FUNCTIONS:
            source = producers[node.inputs[0]]
            assert source.op != "linear" or source.attrs.get("act") or len(users[node.inputs[0]]) > 1
