"""A linear whose input was calibrated reads x + offset: it takes the bias that makes up for it, which the artefact holds."""

from __future__ import annotations

from dataclasses import replace

from taut.graph import Graph, Weight
from taut.passes.options import Options

SHIFTED = ".shifted_bias"  # behind the key of the linear's weight


def requires(graph: Graph) -> None:
    assert all(node.op != "quantize" for node in graph.nodes), "shift before quantizing"


def run(graph: Graph, options: Options) -> Graph:
    nodes, weights = [], []
    for node in graph.nodes:
        if node.op == "linear" and node.weights[0] in options.static:
            weights.append(Weight(node.weights[0] + SHIFTED, graph.weights[node.weights[0]].shape[:1]))
            node = replace(node, weights=(node.weights[0], weights[-1].key))
        nodes.append(node)
    return graph.rebuilt(nodes, (), weights)


def ensures(graph: Graph) -> None:
    assert all(len(node.weights) == 2 for node in graph.nodes if any(key.endswith(SHIFTED) for key in node.weights))
