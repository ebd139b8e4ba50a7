"""Drop nodes whose results nobody reads. A cache_write is read by its attention, so it stays."""

from __future__ import annotations

from taut.graph import Graph, Node
from taut.passes.options import Options


def requires(graph: Graph) -> None:
    pass


def run(graph: Graph, options: Options) -> Graph:
    wanted, kept = set(graph.outputs), []
    for node in reversed(graph.nodes):
        if wanted.intersection(node.outputs):
            wanted.update(node.inputs)
            kept.append(node)
    return graph.rebuilt(reversed(kept))


def ensures(graph: Graph) -> None:
    read = {name for node in graph.nodes for name in node.inputs} | set(graph.outputs)
    dead: list[Node] = [node for node in graph.nodes if not read.intersection(node.outputs)]
    assert not dead
