"""Choosing the next token from a row of logits: the specification, which the native sampler (csrc/sampler.cc) follows but for the
rounding of its float32 weights. Randomness is a function of (seed, choice, position) alone, so that a resumed,
preempted or differently batched request draws the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taut.errors import NumericalError

_MASK = (1 << 64) - 1
NON_FINITE = "the model produced a non-finite logit; the request was stopped"
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class RowChoice:
    """How one row is sampled. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. `position` is the new token's."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    position: int = 0


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) from a counter: three rounds of the splitmix64 finalizer (Steele, Lea and Flood 2014)."""
    state = 0
    for word in (seed, choice, position):
        state = (state + word + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return (state >> 11) / (1 << 53)


def sample_rows(logits: Floats, rows: Sequence[RowChoice]) -> list[int | NumericalError]:
    """For each of the `logits` (rows, vocab) the chosen token, or the error that stops its request alone."""
    chosen: list[int | NumericalError] = []
    for row, choice in zip(logits, rows, strict=True):
        try:
            chosen.append(sample(row, choice))
        except NumericalError as error:
            chosen.append(error)
    return chosen


def sample(logits: Floats, row: RowChoice) -> int:
    """The chosen token id of logits (vocab,). NumericalError when a logit is NaN or infinite."""
    best = int(logits.argmax())
    if not np.isfinite(logits[best]) or not np.isfinite(logits.min()):
        raise NumericalError(NON_FINITE)
    if row.temperature <= 0:
        return best
    # The maximum is subtracted before the division: a tiny temperature gives -inf beside an exact 0, never inf - inf.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits[best])) / row.temperature
    weight = np.exp(scaled)
    kept = _kept(weight, row)
    cumulative = np.cumsum(weight[kept])
    drawn = np.searchsorted(cumulative, uniform(row.seed, row.choice, row.position) * cumulative[-1], side="right")
    return int(kept[min(int(drawn), len(kept) - 1)])


def _kept(weight: NDArray[np.float64], row: RowChoice) -> NDArray[np.int64]:
    """Ids that pass top-k, then top-p (Holtzman et al. 2020) of what is left, then min-p; in id order, so ties break by id."""
    kept = np.arange(len(weight))
    if 0 < row.top_k < len(weight):
        kept = np.sort(np.argsort(-weight, kind="stable")[: row.top_k])
    if row.top_p < 1:
        order = kept[np.argsort(-weight[kept], kind="stable")]
        before = np.cumsum(weight[order]) - weight[order]
        kept = np.sort(order[before < row.top_p * weight[kept].sum()]) if row.top_p > 0 else order[:1]
    if row.min_p > 0:
        kept = kept[weight[kept] >= row.min_p * weight[kept].max()]
    return kept
