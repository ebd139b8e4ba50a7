"""The text form of a graph, one node a line: passes are tested by comparing it before and after."""

from __future__ import annotations

from taut.graph.node import Graph, Node


def to_text(graph: Graph) -> str:
    """`value:features = op(inputs; weights) {attrs}` for each node, then the outputs."""
    lines = [line(graph, node) for node in graph.nodes]
    return "\n".join([*lines, "return " + ", ".join(graph.outputs)]) + "\n"


def line(graph: Graph, node: Node) -> str:
    outputs = ", ".join(_typed(graph, name) for name in node.outputs)
    operands = ", ".join(node.inputs) + ("; " + ", ".join(node.weights) if node.weights else "")
    attrs = " ".join(f"{key}={_plain(value)}" for key, value in node.attrs.items())
    return f"{outputs} = {node.op}({operands})" + (f" {{{attrs}}}" if attrs else "")


def _typed(graph: Graph, name: str) -> str:
    signature = graph.signature(name)
    kind = "" if signature.dtype == "f32" else f":{signature.dtype}"
    space = "" if signature.space == "tokens" else f"@{signature.space}"
    return f"{name}:{signature.features}{kind}{space}"


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
