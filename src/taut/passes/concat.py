"""Concatenating linears that share an input: what fuse_qkv and fuse_gate_up have in common."""

from __future__ import annotations

from types import MappingProxyType

from taut.graph import Graph, Node, Value, Weight
from taut.ops import Signature
from taut.passes.options import Options


def shared_inputs(graph: Graph, count: int, options: Options) -> list[tuple[Node, ...]]:
    """Groups of exactly `count` plain linears that read the same value, all with a bias or all without, of weights used nowhere else and
    of one format."""
    uses: dict[str, int] = {}
    for node in graph.nodes:
        for key in node.weights:
            uses[key] = uses.get(key, 0) + 1
    groups = []
    for users in graph.users().values():
        linears = tuple(n for n in users if n.op == "linear" and not n.attrs.get("act") and not n.origin)
        if (
            len(linears) == count
            and len({len(n.weights) for n in linears}) == 1
            and all(uses[w] == 1 for n in linears for w in n.weights)
            and options.may_join(linears)
        ):
            groups.append(linears)
    return groups


def fuse_linears(graph: Graph, group: tuple[Node, ...], name: str) -> Graph:
    """One linear called `name` in place of the first of `group`, followed by slices that keep the old values' names."""
    widths = [graph.signature(node.outputs[0]).features for node in group]
    space = graph.signature(group[0].outputs[0]).space
    weights = []
    for index in range(len(group[0].weights)):
        sources = tuple(node.weights[index] for node in group)
        tail = graph.weights[sources[0]].shape[1:]
        weights.append(Weight(f"{name}.{('weight', 'bias')[index]}", (sum(widths), *tail), sources))
    fused = Node(name, "linear", group[0].inputs, (name,), tuple(w.key for w in weights), MappingProxyType({}), group)
    slices, begin = [], 0
    for node, width in zip(group, widths, strict=True):
        attrs = MappingProxyType({"begin": begin, "end": begin + width})
        slices.append(Node(node.outputs[0], "slice", (name,), node.outputs, (), attrs))
        begin += width
    nodes: list[Node] = []
    replaced = {id(node) for node in group}  # nodes are deep: comparing them by value takes longer than all else here
    for node in graph.nodes:
        if node is group[0]:
            nodes += [fused, *slices]
        elif id(node) not in replaced:
            nodes.append(node)
    return graph.rebuilt(nodes, [Value(name, Signature(sum(widths), space))], weights)
