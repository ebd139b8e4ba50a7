"""norm(a + b) becomes one sweep: the sum is stored only where somebody else reads it."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options

NORMS = ("rms_norm", "layer_norm")


def requires(graph: Graph) -> None:
    assert all(not node.attrs.get("add") for node in graph.nodes if node.op in NORMS)


def run(graph: Graph, options: Options) -> Graph:
    users, fused, gone = graph.users(), {}, set()
    for node in graph.nodes:
        norms = [n for n in users[node.outputs[0]] if n.op in NORMS and not n.attrs.get("head_dim")]
        if node.op == "add" and len(norms) == 1:
            shared = len(users[node.outputs[0]]) > 1 or node.outputs[0] in graph.outputs
            fused[node.name] = _fused(node, norms[0], shared)
            gone.add(norms[0].name)
    return graph.rebuilt(fused.get(node.name, node) for node in graph.nodes if node.name not in gone)


def _fused(add: Node, norm: Node, shared: bool) -> Node:
    attrs = MappingProxyType({**norm.attrs, "add": True, "store_sum": shared, "store_out": True, "group": -1})
    outputs = (*(add.outputs if shared else ()), *norm.outputs)
    return Node(norm.name, norm.op, add.inputs, outputs, norm.weights, attrs, (add, norm))


def ensures(graph: Graph) -> None:
    producers, users = graph.producers(), graph.users()
    for node in graph.nodes:
        plain = node.op in NORMS and not node.attrs.get("head_dim") and not node.attrs.get("add")
        if plain and producers[node.inputs[0]].op == "add":
            assert sum(n.op in NORMS for n in users[node.inputs[0]]) > 1
