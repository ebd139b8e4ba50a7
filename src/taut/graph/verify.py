"""verify: a graph is well formed. Run after building and after every pass."""

from __future__ import annotations

from taut import ops
from taut.graph.node import Graph, Node


def verify(graph: Graph) -> Graph:
    """The graph itself; AssertionError listing every fault: undefined or doubly defined values, undeclared weights, wrong shapes."""
    faults: list[str] = []
    defined: set[str] = set()
    for node in graph.nodes:
        missing = [i for i in node.inputs if i not in defined]
        missing += [w for w in node.weights if w not in graph.weights and w not in graph.constants]
        if missing:
            faults.append(f"{node.name}: used before it is defined: {', '.join(missing)}")
        elif twice := defined.intersection(node.outputs):
            faults.append(f"{node.name}: defined twice: {', '.join(twice)}")
        else:
            faults += _shape_faults(graph, node)
        defined.update(node.outputs)
    faults += [f"output {name} is not defined" for name in graph.outputs if name not in defined]
    assert not faults, "malformed graph:\n" + "\n".join(faults)
    return graph


def _shape_faults(graph: Graph, node: Node) -> list[str]:
    try:
        inputs, shapes = [graph.signature(i) for i in node.inputs], [graph.weight_shape(w) for w in node.weights]
        inferred = ops.find(node.op).infer(inputs, shapes, node.attrs)
    except (KeyError, ValueError) as error:
        return [f"{node.name}: {error}"]
    declared = [graph.signature(o) for o in node.outputs]
    return [] if inferred == declared else [f"{node.name}: {node.op} makes {inferred}, the graph declares {declared}"]
