"""An encoder's q, k, v and attention become one step for a sequence and a few heads: the three never leave a core's own cache.

The weight's rows are interleaved when it is packed, so that a group of heads is a run of whole panels.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from taut.graph import Graph, Node
from taut.passes.options import Options
from taut.passes.quantize import QUANTIZED
from taut.quant.schemes.int8 import PANEL


def requires(graph: Graph) -> None:
    assert all(node.op != "qkv_attention" for node in graph.nodes)


def run(graph: Graph, options: Options) -> Graph:
    fused, gone, weights = {}, set(), []
    for node in graph.nodes:
        if (linear := _linear_of(graph, node)) is not None:
            fused[node.name] = _fused(linear, node)
            gone |= {linear.name, *(name for part in graph.users()[linear.outputs[0]] for name in part.outputs)}
            weights += [replace(graph.weights[key], interleave=_interleave(node)) for key in linear.weights]
    return graph.rebuilt((fused.get(node.name, node) for node in graph.nodes if node.outputs[0] not in gone), (), weights)


def _linear_of(graph: Graph, node: Node) -> Node | None:
    """The quantized linear of three weights of one shape whose slices this attention reads, and nobody else."""
    if node.op != "attention_full" or node.attrs["heads"] != node.attrs["kv_heads"]:
        return None
    producers, users = graph.producers(), graph.users()
    slices = [producers[name] for name in node.inputs]
    linear = producers[slices[0].inputs[0]] if slices[0].op == "slice" else node
    width = graph.signature(node.inputs[0]).features
    head_dim = int(node.attrs["head_dim"])
    fits = (
        linear.op in QUANTIZED
        and not linear.attrs.get("act")
        and all(len(graph.weights[key].sources) == 3 for key in linear.weights)
        and [(part.op, part.inputs, part.attrs["begin"]) for part in slices]
        == [("slice", linear.outputs, index * width) for index in range(3)]
        and users[linear.outputs[0]] == slices
        and all(users[name] == [node] for name in node.inputs)
        and (PANEL % head_dim == 0 or head_dim % PANEL == 0)
        and width % _interleave(node) == 0
    )
    return linear if fits else None


def _interleave(attention: Node) -> int:
    """Rows of q, k and v in turn: whole heads and whole panels."""
    return max(PANEL, int(attention.attrs["head_dim"]))


def _fused(linear: Node, attention: Node) -> Node:
    bits = 8 if linear.op == "linear_q8" else 4
    attrs = MappingProxyType(
        {**attention.attrs, "group": linear.attrs["group"], "bits": bits, "interleave": _interleave(attention)}
    )
    if weight_group := linear.attrs.get("weight_group"):
        attrs = MappingProxyType({**attrs, "weight_group": weight_group})
    return Node(attention.name, "qkv_attention", linear.inputs, attention.outputs, linear.weights, attrs, (linear, attention))


def ensures(graph: Graph) -> None:
    assert all(_linear_of(graph, node) is None for node in graph.nodes)
