"""Where fp16 is involved, values stay inside of its range: outputs of the norms that linears on float16 weights read, and attention scores
behind such a linear or over a KV cache of 16 bits.

Every value passes the guard, whatever it is: a result never depends on whether a neighbour overflowed. What a guard changes is counted
(kernels/native.py counters), so that it is never a silent error.
"""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node
from taut.graph.node import Attr
from taut.passes.fuse_add_norm import NORMS
from taut.passes.options import Options

CLAMP = 6e4  # float16 ends at 65504
SCORE_LIMIT = 5e4
ATTENTIONS = ("attention", "attention_full")
KV_16_BITS = ("bf16",)


def requires(graph: Graph) -> None:
    assert all(not node.attrs.get("add") for node in graph.nodes if node.op in NORMS), "norms are guarded before they are fused"


def run(graph: Graph, options: Options) -> Graph:
    users, producers = graph.users(), graph.producers()
    narrow_cache = options.kv in KV_16_BITS
    nodes = []
    for node in graph.nodes:
        if node.op in NORMS and any(_is_half(reader) for reader in users[node.outputs[0]]):
            node = _with(node, "clamp", CLAMP)
        elif node.op in ATTENTIONS and (
            (narrow_cache and node.op == "attention") or any(_comes_from_half(producers, name) for name in node.inputs)
        ):
            node = _with(node, "score_limit", SCORE_LIMIT)
        nodes.append(node)
    return graph.rebuilt(nodes)


def _is_half(node: Node) -> bool:
    return node.op == "linear" and node.attrs.get("store") == "f16"


def _comes_from_half(producers: dict[str, Node], name: str) -> bool:
    """Whether the value is a linear's on float16 weights, sliced, turned, normalized or stored on its way."""
    node = producers.get(name)
    if node is None or node.op.startswith("linear"):
        return node is not None and _is_half(node)
    return any(_comes_from_half(producers, source) for source in node.inputs)


def _with(node: Node, name: str, value: Attr) -> Node:
    """The node with one more attribute; it is not fused yet, so nothing else has to know."""
    assert not node.origin
    return Node(
        node.name, node.op, node.inputs, node.outputs, node.weights, MappingProxyType({**node.attrs, name: value}), node.origin
    )


def ensures(graph: Graph) -> None:
    for node in graph.nodes:
        assert "clamp" not in node.attrs or node.op in NORMS
        assert "score_limit" not in node.attrs or node.op in ATTENTIONS
