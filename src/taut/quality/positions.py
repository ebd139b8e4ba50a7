"""Two models compared at every position of a window of text. Knows logits and token ids, not models; keeps a few numbers a position,
never the logits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
_ROWS = 64  # positions compared at a time: copies of all of them would need gigabytes


@dataclass(frozen=True)
class Positions:
    """What is known of each position; all arrays are (tokens,). The last position of a window has no next token: its likelihoods are
    NaN and nobody is right there. A model is right where its most likely token is the one that follows.
    """

    window: Ints
    index: Ints  # place within its window, from 0
    kl: Doubles  # KL(reference || candidate), nats
    agrees: Bools  # both have the same most likely token
    nll: Doubles  # of the candidate: -ln of the following token's probability
    reference_nll: Doubles
    is_right: Bools
    reference_is_right: Bools

    def select(self, mask: Bools) -> Positions:
        return Positions(*(array[mask] for array in vars(self).values()))

    @property
    def is_followed(self) -> Bools:
        return ~np.isnan(self.reference_nll)


def log_softmax(logits: Floats) -> Floats:
    """(rows, vocab) -> log probabilities. float32, sums in float64: the rounding (1e-6 nats) is far below any divergence of interest."""
    x: Floats = logits - logits.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return x


def compare(reference: Floats, candidate: Floats, ids: Ints, window: int = 0) -> Positions:
    """One window: logits (T, vocab) of both models over the ids (T,)."""
    assert reference.shape == candidate.shape and len(reference) == len(ids), (
        f"{reference.shape} and {candidate.shape} logits of {len(ids)} tokens"
    )
    tokens = len(ids)
    following = np.append(ids[1:], -1)  # (T,); -1 stands in for what nobody knows
    kl, nll, reference_nll = np.zeros(tokens), np.full(tokens, np.nan), np.full(tokens, np.nan)
    best, reference_best = np.zeros(tokens, np.int64), np.zeros(tokens, np.int64)
    for rows, p, q in _pairs(reference, candidate):
        kl[rows] = (np.exp(p) * (p - q)).sum(axis=-1, dtype=np.float64)
        reference_best[rows], best[rows] = p.argmax(-1), q.argmax(-1)
        known = np.flatnonzero(following[rows] >= 0)
        at = known, following[rows][known]
        reference_nll[rows][known], nll[rows][known] = -p[at], -q[at]
    return Positions(
        np.full(tokens, window, np.int32), np.arange(tokens, dtype=np.int32), kl, best == reference_best,
        nll, reference_nll, best == following, reference_best == following,
    )  # fmt: skip


def join(windows: Sequence[Positions]) -> Positions:
    """All positions of several windows, in their order."""
    return Positions(*(np.concatenate(arrays) for arrays in zip(*(vars(window).values() for window in windows), strict=True)))


def _pairs(reference: Floats, candidate: Floats) -> Iterator[tuple[slice, Floats, Floats]]:
    """(rows, reference log probabilities, candidate's), a few rows at a time."""
    for first in range(0, len(reference), _ROWS):
        rows = slice(first, first + _ROWS)
        yield rows, log_softmax(reference[rows]), log_softmax(candidate[rows])
