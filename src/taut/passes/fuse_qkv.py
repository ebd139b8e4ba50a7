"""Three linears that read one value become one linear over the concatenated weights, and three slices of its result."""

from __future__ import annotations

from taut.graph import Graph
from taut.passes.concat import fuse_linears, shared_inputs
from taut.passes.options import Options


def requires(graph: Graph) -> None:
    assert all(node.op != "quantize" for node in graph.nodes), "fuse before quantizing"


def run(graph: Graph, options: Options) -> Graph:
    for group in shared_inputs(graph, 3, options):
        graph = fuse_linears(graph, group, group[0].name.rpartition(".")[0] + ".qkv")
    return graph


def ensures(graph: Graph) -> None:
    fused = [node for node in graph.nodes if node.op == "linear" and len(node.origin) == 3]
    assert all(len({part.inputs for part in node.origin}) == 1 for node in fused)
