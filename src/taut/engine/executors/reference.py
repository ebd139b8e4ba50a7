"""The reference executor: numpy, float64 dots, one op after the other. The oracle that every other executor is compared with.

It runs what fused nodes were fused from, so that it checks the passes too. Slow on purpose.
"""

from __future__ import annotations

from typing import Any

from taut import ops
from taut.engine.batch import Batch
from taut.engine.kv_cache import KVPool
from taut.graph import Graph
from taut.plan import WeightStore


class ReferenceExecutor:
    """Runs `graph` on batches."""

    def __init__(self, graph: Graph, store: WeightStore, kv: KVPool | None) -> None:
        self._graph, self._store, self._kv = graph, store, kv
        self._nodes = tuple(part for node in graph.nodes for part in node.decompose())
        self._shapes = self._weight_shapes(graph)

    def trim(self) -> None:
        """Nothing is kept between runs."""

    def counts(self) -> dict[str, dict[str, int]]:
        """numpy counts nothing."""
        return {}

    def totals(self) -> dict[str, int]:
        return {}

    def run(self, batch: Batch) -> list[Any]:
        """The graph's outputs, float32 (units of their space, features)."""
        context = ops.Context(
            batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, self._kv
        )
        values: dict[str, Any] = {}
        for node in self._nodes:
            if node.outputs[0] in values:
                continue  # a slice of a fused value: its origin has made it
            inputs = [values[name] for name in node.inputs]
            weights = [self._store.logical(key, self._shapes[key]) for key in node.weights]
            results = ops.find(node.op).run(inputs, weights, node.attrs, context)
            values.update(zip(node.outputs, results, strict=True))
        return [values[name] for name in self._graph.outputs]

    @staticmethod
    def _weight_shapes(graph: Graph) -> dict[str, tuple[int, ...]]:
        return {**{key: w.shape for key, w in graph.weights.items()}, **{key: t.shape for key, t in graph.constants.items()}}
