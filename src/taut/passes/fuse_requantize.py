"""quantize(linear(x)) becomes a linear that writes quantized rows, where whole panels of columns fill the groups of the scales."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node
from taut.ops.epilogue import OUT_GROUPS
from taut.passes.options import Options
from taut.passes.quantize import QUANTIZED


def requires(graph: Graph) -> None:
    assert not any(node.attrs.get("out_group") for node in graph.nodes), "linears write quantized rows already"


def run(graph: Graph, options: Options) -> Graph:
    users, fused = graph.users(), {}
    for node in graph.nodes:
        readers = users[node.outputs[0]]
        if node.op in QUANTIZED and len(readers) == 1 and _fits(graph, node, readers[0]):
            attrs = MappingProxyType({**node.attrs, "out_group": readers[0].attrs["group"]})
            fused[node.name] = replace(node, outputs=readers[0].outputs, attrs=attrs, origin=(node, readers[0]))
    gone = {node.origin[1].name for node in fused.values()}
    return graph.rebuilt(fused.get(node.name, node) for node in graph.nodes if node.name not in gone)


def _fits(graph: Graph, node: Node, reader: Node) -> bool:
    """One scale for the whole row (group 0) is known only when all panels are there."""
    return reader.op == "quantize" and reader.attrs["group"] in OUT_GROUPS and node.outputs[0] not in graph.outputs


def ensures(graph: Graph) -> None:
    producers, users = graph.producers(), graph.users()
    for node in graph.nodes:
        source = producers[node.inputs[0]] if node.op == "quantize" else node
        assert source.op not in QUANTIZED or source is node or len(users[node.inputs[0]]) > 1 or not _fits(graph, source, node)
