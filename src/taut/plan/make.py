"""make: a graph becomes a Plan. Views are resolved, buffers placed, kernels named; nothing is decided after this."""

from __future__ import annotations

from dataclasses import dataclass

from taut.graph import Graph, Node
from taut.kernels.attention import POLICIES
from taut.kernels.table import select
from taut.plan.memory import Lifetime, place
from taut.plan.plan import Buffer, Plan, Space, Step, View
from taut.quant.schemes import int8

ALIGN = 64


@dataclass(frozen=True)
class Target:
    """What the plan is made for: the backend's name (an ISA, or "reference"), and the keys that a softmax is taken over at once
    (kernels/attention.py). bf16: where the precision is bf16, products are those of bf16, in linears and in attention; else weights of bf16
    are widened and everything is computed in fp32. blocks: encoders' attention multiplies in bf16, in blocks of 32, unless the precision is
    fp32."""

    backend: str = "reference"
    softmax_keys: int = POLICIES["auto"].softmax_keys
    bf16: bool = False
    blocks: bool = False


def make(graph: Graph, target: Target, precision: str) -> Plan:
    """The plan of `graph` on `target`. Slices cost nothing; rotations work in place where nobody else reads their input."""
    aliases = _aliases(graph)
    nodes = [node for node in graph.nodes if node.op != "slice"]
    buffers, spaces = place(_lifetimes(graph, nodes, aliases, target))
    views = {name: _view(graph, name, aliases, buffers) for name in graph.values if graph.signature(name).dtype != "kv"}
    steps = tuple(_step(node, views, target, precision) for node in nodes)
    return Plan(
        steps, tuple(views[name] for name in graph.outputs), {str(space): size for space, size in spaces.items()}, precision
    )


def _step(node: Node, views: dict[str, View], target: Target, precision: str) -> Step:
    inputs = tuple(views[name] for name in node.inputs if name in views)
    outputs = tuple(views[name] for name in node.outputs if name in views)
    origin = tuple(part.name for part in node.decompose())
    attrs = dict(node.attrs)
    if node.op in ("attention", "attention_full", "qkv_attention"):
        attrs["softmax_keys"] = target.softmax_keys
        if target.bf16 and precision == "bf16":
            attrs["bf16"] = True
        if target.blocks and node.op != "attention" and precision != "fp32":
            attrs["blocks"] = True
    if node.op == "linear" and node.attrs.get("store") == "bf16" and target.bf16:
        attrs["bf16"] = True
    return Step(node.op, inputs, outputs, node.weights, attrs, select(node.op, target.backend).name, origin)


def _aliases(graph: Graph) -> dict[str, tuple[str, int]]:
    """value -> (value whose bytes it uses, first column there), resolved to the root; roots are absent."""
    users = graph.users()
    found: dict[str, tuple[str, int]] = {}
    for node in graph.nodes:
        source = node.inputs[0] if node.inputs else ""
        in_place = node.op in ("rope", "rope_cache") or (node.op == "rms_norm" and node.attrs.get("head_dim"))
        if node.op == "slice":
            column = int(node.attrs["begin"])
        elif in_place and users[source] == [node] and source not in graph.outputs:
            column = 0
        else:
            continue
        root, base = found.get(source, (source, 0))
        found[node.outputs[0]] = (root, base + column)
    return found


def _lifetimes(graph: Graph, nodes: list[Node], aliases: dict[str, tuple[str, int]], target: Target) -> dict[str, Lifetime]:
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in (*node.inputs, *node.outputs):
            root = aliases.get(name, (name, 0))[0]
            first.setdefault(root, index)
            last[root] = index
    for name in graph.outputs:
        last[aliases.get(name, (name, 0))[0]] = len(nodes)
    groups = {name: _out_group(node) for node in nodes for name in node.outputs if graph.signature(name).dtype == "q8"}
    lifetimes = {}
    for name in first:
        signature = graph.signature(name)
        if signature.dtype == "kv":
            continue
        if signature.dtype == "q8":
            size = int8.quantized_row_bytes(signature.features, groups[name])
        else:
            size = int8.round_up(4 * signature.features, ALIGN)
        space: Space = signature.space
        lifetimes[name] = Lifetime(space, size, first[name], last[name])
    return lifetimes


def _out_group(node: Node) -> int:
    """Scale group of the node's quantized output; a linear's `group` is its input's."""
    return int(node.attrs.get("out_group", node.attrs["group"]))


def _view(graph: Graph, name: str, aliases: dict[str, tuple[str, int]], buffers: dict[str, Buffer]) -> View:
    root, column = aliases.get(name, (name, 0))
    signature = graph.signature(name)
    return View(name, buffers[root], column, signature.features, "q8" if signature.dtype == "q8" else "f32")
