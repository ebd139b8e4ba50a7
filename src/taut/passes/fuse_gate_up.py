"""act(gate(x)) * up(x) becomes one linear over both weights and one swiglu over its halves."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.graph.node import Attr
from taut.passes.concat import fuse_linears, shared_inputs
from taut.passes.options import Options

ACTS = ("silu", "gelu", "gelu_tanh", "relu")


def requires(graph: Graph) -> None:
    assert all(node.op != "quantize" for node in graph.nodes), "fuse before quantizing"


def run(graph: Graph, options: Options) -> Graph:
    for pair in shared_inputs(graph, 2, options):
        graph = _fuse(graph, pair)
    return graph


def _fuse(graph: Graph, pair: tuple[Node, ...]) -> Graph:
    users = graph.users()
    for gate, up in (pair, pair[::-1]):
        acts = users[gate.outputs[0]]
        products = users[acts[0].outputs[0]] if len(acts) == 1 and acts[0].op in ACTS else []
        if len(products) == 1 and products[0].op == "mul" and users[up.outputs[0]] == products:
            name = products[0].name.rpartition(".")[0] + ".gate_up"
            fused = fuse_linears(graph, (gate, up), name)
            return _swiglu(fused, name, acts[0], products[0])
    return graph


def _swiglu(graph: Graph, gate_up: str, act: Node, product: Node) -> Graph:
    attrs = MappingProxyType[str, Attr]({"act": act.op, "group": -1})
    node = Node(product.name, "swiglu", (gate_up,), product.outputs, (), attrs, (act, product))
    # The slices of gate and up go: only the origin reads them, and it makes them itself.
    gone = {act.name, *(n.name for n in graph.nodes if n.op == "slice" and n.inputs == (gate_up,))}
    return graph.rebuilt(node if n.name == product.name else n for n in graph.nodes if n.name not in gone)


def ensures(graph: Graph) -> None:
    users = graph.users()
    assert all(node.op != "swiglu" or users[node.inputs[0]] == [node] for node in graph.nodes)
