"""A norm whose result is read by linears and by others too (an encoder's, which the residual reads) becomes two where the artefact smooths
what the linears read: theirs has gain and bias divided, channel by channel.

The division is by powers of two, so it is the same function; the second norm costs one more sweep over the row, from L1.
"""

from __future__ import annotations

from dataclasses import replace

from taut.graph import Graph, Node, Value, Weight
from taut.passes.fuse_add_norm import NORMS
from taut.passes.options import Options

SMOOTH = ".smooth"  # behind the key of the norm's gain or bias, and of the value that it makes


def misfits(graph: Graph, keys: frozenset[str]) -> list[str]:
    """Of the weights that are said to be smoothed, and those beside them, the ones that no norm before linears has a whole twin of."""
    users = graph.users()
    norms = [
        set(node.weights)
        for node in graph.nodes
        if node.op in NORMS and any(reader.op == "linear" for reader in users[node.outputs[0]])
    ]
    whole: set[str] = set().union(*(own for own in norms if own <= keys))
    halves: set[str] = set().union(*(own for own in norms if own & keys and not own <= keys))
    return sorted((keys - whole) | halves)


def requires(graph: Graph) -> None:
    assert all(not node.origin for node in graph.nodes), "norms are split before anything is fused"


def run(graph: Graph, options: Options) -> Graph:
    nodes: list[Node] = []
    values, weights = [], []
    renamed: dict[str, str] = {}  # what linears read from now on
    for node in graph.nodes:
        if node.op == "linear":
            node = replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs))
        nodes.append(node)
        if node.op in NORMS and node.weights[0] in options.smoothed:
            (output,) = node.outputs
            renamed[output] = output + SMOOTH
            weights += [Weight(key + SMOOTH, graph.weights[key].shape) for key in node.weights]
            values.append(Value(output + SMOOTH, graph.signature(output)))
            own = tuple(key + SMOOTH for key in node.weights)
            nodes.append(replace(node, name=node.name + SMOOTH, outputs=(output + SMOOTH,), weights=own))
    return graph.rebuilt(nodes, values, weights)


def ensures(graph: Graph) -> None:
    users = graph.users()
    split = {name.removesuffix(SMOOTH) for name in graph.values if name.endswith(SMOOTH)}
    assert all(reader.op != "linear" for name in split for reader in users.get(name, []))
