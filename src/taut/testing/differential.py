"""The differential runner: two executors, the same batches, one number that says how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taut.engine.batch import Batch, Part, concatenate
from taut.engine.engine import Executor
from taut.engine.kv_cache import blocks_for
from taut.engine.kv_slots import Floats


@dataclass(frozen=True)
class Difference:
    """Of one output: `relative` is max|candidate - reference| / max|reference|; `identical` compares bits (NaN equals NaN)."""

    relative: float
    identical: bool


def compare(reference: Executor, candidate: Executor, batch: Batch) -> list[Difference]:
    """Run both on `batch` and compare output by output. Executors of a decoder need a KV pool each: a run writes to it."""
    expected, got = reference.run(batch), candidate.run(batch)
    assert len(expected) == len(got), f"{len(expected)} and {len(got)} outputs"
    return [difference(np.asarray(a, np.float32), np.asarray(b, np.float32)) for a, b in zip(expected, got, strict=True)]


def difference(reference: Floats, candidate: Floats) -> Difference:
    """The Difference of two float32 arrays of one shape. A NaN on one side only is infinitely far away."""
    assert reference.shape == candidate.shape, f"shapes {reference.shape} and {candidate.shape}"
    nan = np.isnan(reference)
    if not np.array_equal(nan, np.isnan(candidate)):
        return Difference(float("inf"), False)
    a, b = np.where(nan, 0, reference), np.where(nan, 0, candidate)
    scale = float(np.abs(a).max(initial=0.0))
    far = float(np.abs(a.astype(np.float64) - b).max(initial=0.0))
    return Difference(far / scale if scale else far, bool(np.array_equal(a, b)))


def ragged(lengths: Sequence[int], vocab_size: int, *, cached: Sequence[int] | None = None, seed: int = 0) -> Batch:
    """A batch of new sequences of these many random tokens, every row wanted, each with KV blocks of its own from block 0 on.
    `cached` says how many tokens of each are in the cache already."""
    rng = np.random.default_rng(seed)
    parts, block = [], 0
    for length, first in zip(lengths, cached or [0] * len(lengths), strict=True):
        count = blocks_for(first + length)
        parts.append(Part(rng.integers(0, vocab_size, length).tolist(), first, range(block, block + count), all_rows=True))
        block += count
    return concatenate(parts)
