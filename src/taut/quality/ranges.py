"""How large a model's numbers are, and which linear layers float16 would not hold.

Weights are read from the checkpoint or the store; inputs and outputs are those of a self-test: the model's own first tokens, step by step.
Knows float linears; a quantized one has scales, and no range to leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from taut.engine.batch import Batch, Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.graph import Graph
from taut.plan import Plan, WeightStore
from taut.plan.packing import FLOATS
from taut.plan.weights import TensorSource

if TYPE_CHECKING:
    from taut.engine.executors.native import NativeExecutor

FLOAT16_END = 65520.0  # from here on a number rounds to infinity
VALUE_MARGIN = 2e4  # of a self-test: other texts reach further
SELF_TEST_TOKENS = 64
SENTENCE = "The quick brown fox jumps over the lazy dog; 1234 of them, and then some more: naïve, Ωmega, 漢字."
ROWS = 1024  # of a weight at a time


@dataclass(frozen=True)
class Range:
    """Largest magnitudes of one linear layer. An infinity or NaN among them is infinite."""

    weights: float
    inputs: float
    outputs: float


def beyond_float16(graph: Graph, source: TensorSource) -> tuple[str, ...]:
    """The linears of `graph` on float16 weights of which the checkpoint has one that is no finite float16."""
    found = []
    for node in graph.nodes:
        if node.op == "linear" and node.attrs.get("store") == "f16":
            key = node.weights[0]
            parts = graph.weights[key].sources or (key,)
            arrays = [np.asarray(source.read(part)) for part in parts]
            if max(_largest(array) for array in arrays) >= FLOAT16_END:
                found.append(node.name)
            source.release()
    return tuple(found)


def audit(executor: NativeExecutor, plan: Plan, store: WeightStore, batch: Batch) -> dict[str, Range]:
    """The ranges of every float linear of `plan` while it runs `batch`, by the name of its first layer."""
    found: dict[str, Range] = {}
    executor.run(batch, 0, 0)
    for index, step in enumerate(plan.steps):
        is_linear = step.op == "linear"
        inputs = _largest(executor.value(step.inputs[0], batch)) if is_linear else 0.0
        executor.run(batch, index, index + 1)
        if is_linear:
            weight = store[step.weights[0]]
            assert weight.kind in FLOATS
            found[step.origin[0]] = Range(_largest(weight.data), inputs, _largest(executor.value(step.outputs[0], batch)))
    return found


def self_test(loaded: Any) -> dict[str, Range]:
    """audit of a loaded model (loading.Loaded, native): a decoder on its begin token and the 64 greedy ones after it, an encoder on a
    sentence."""
    tokenizer = loaded.checkpoint.tokenizer
    if loaded.built.kind != "decoder":
        return _audit_of(loaded, Part(tokenizer.encode(SENTENCE)))
    pool = loaded.scheduler.pool
    count = min(SELF_TEST_TOKENS, loaded.context_len - 1)
    blocks = pool.take(blocks_for(count + 1))
    try:
        begin = tokenizer.bos_id if tokenizer is not None and tokenizer.bos_id is not None else 0
        ids = [begin]
        for position in range(count):
            logits = loaded.engine.logits(concatenate([Part(ids[-1:], position, blocks)]))
            ids.append(int(np.argmax(logits[0])))
        return _audit_of(loaded, Part(ids, 0, blocks))
    finally:
        pool.release(blocks)


def _audit_of(loaded: Any, part: Part) -> dict[str, Range]:
    return audit(loaded.engine.executor, loaded.plan, loaded.store, concatenate([part]))


def overflowing(ranges: Mapping[str, Range], to: Literal["bf16", "fp32"] = "bf16") -> tuple[str, ...]:
    """Pins (config.LoadConfig.pins) that keep the layers of `ranges` which float16 would not hold, or hardly, in `to`. The ranges of bf16 and
    fp32 are the same; bf16 takes half the bytes, fp32 keeps the precision."""
    return pins((name for name, found in ranges.items() if _overflows(found)), to)


def pins(names: Iterable[str], precision: str) -> tuple[str, ...]:
    return tuple(f"{name}={precision}" for name in names)


def _overflows(found: Range) -> bool:
    return found.weights >= FLOAT16_END or max(found.inputs, found.outputs) > VALUE_MARGIN


def _largest(x: NDArray[Any]) -> float:
    """The largest magnitude, infinite where a number is not finite; 0 of nothing."""
    parts = (np.abs(x[row : row + ROWS].astype(np.float32)) for row in range(0, len(x), ROWS))
    largest = max(
        (float(part.max(initial=0.0)) for part in parts), key=lambda value: np.inf if np.isnan(value) else value, default=0.0
    )
    return float("inf") if np.isnan(largest) else largest
