"""rope(q), rope(k), cache_write(k, v) become one step on the row tile."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options


def requires(graph: Graph) -> None:
    assert all(node.op != "rope_cache" for node in graph.nodes)


def run(graph: Graph, options: Options) -> Graph:
    for write in [node for node in graph.nodes if node.op == "cache_write"]:
        graph = _fuse(graph, write)
    return graph


def _fuse(graph: Graph, write: Node) -> Graph:
    producers, users = graph.producers(), graph.users()
    rope_k = producers[write.inputs[0]]
    attention = users[write.outputs[0]]
    rope_q = producers[attention[0].inputs[0]] if len(attention) == 1 else write
    same_turn = rope_q.op == rope_k.op == "rope" and rope_q.weights == rope_k.weights and rope_q.attrs == rope_k.attrs
    if not same_turn or users[rope_q.outputs[0]] != attention or users[rope_k.outputs[0]] != [write]:
        return graph
    attrs = MappingProxyType({"layer": write.attrs["layer"], **rope_k.attrs})
    inputs = (rope_q.inputs[0], rope_k.inputs[0], write.inputs[1])
    outputs = (*rope_q.outputs, *write.outputs)
    fused = Node(write.name, "rope_cache", inputs, outputs, rope_k.weights, attrs, (rope_q, rope_k, write))
    gone = {rope_q.name, rope_k.name}
    return graph.rebuilt(fused if n.name == write.name else n for n in graph.nodes if n.name not in gone)


def ensures(graph: Graph) -> None:
    fused = {name for node in graph.nodes if node.op == "rope_cache" for name in node.outputs}
    assert all(node.inputs[1] in fused for node in graph.nodes if node.op == "attention" and node.inputs[0] in fused)
