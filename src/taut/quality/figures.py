"""The figures of a language model's quality, from compared positions: divergence, agreement, perplexity, flips; over all positions and by
place in the window.

A mean's error is its standard error over windows, not over tokens: neighbouring tokens resemble each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from taut.quality.positions import Doubles, Ints, Positions

BUCKETS = (0, 32, 128, 256, 512)  # first positions; what lies beyond is a bucket of its own


@dataclass(frozen=True)
class Bucket:
    """The positions `first` to `last` of each window."""

    first: int
    last: int
    tokens: int
    kl: float
    kl_error: float | None
    top1: float
    perplexity_change: float | None


@dataclass(frozen=True)
class Figures:
    """`kl` (mean, median, 99th percentile) in nats per token; `top1` the share of positions with the same most likely token;
    `perplexity_change` relative to the reference's. Errors are standard errors, None for a single window. A flip is a position where
    exactly one of the two models puts the token that follows first: `lost` the reference, `gained` the candidate. `predicted` positions
    have a token that follows.
    """

    kl: float
    kl_error: float | None
    kl_median: float
    kl_p99: float
    top1: float
    perplexity: float
    reference_perplexity: float
    perplexity_change: float
    perplexity_change_error: float | None
    flips_lost: int
    flips_gained: int
    predicted: int
    tokens: int
    windows: int
    buckets: tuple[Bucket, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def figures(compared: Positions) -> Figures:
    """The figures over all windows; a window counts by its length."""
    followed = compared.select(compared.is_followed)
    gap = followed.nll - followed.reference_nll
    perplexity, reference = float(np.exp(followed.nll.mean())), float(np.exp(followed.reference_nll.mean()))
    change = perplexity / reference - 1
    gap_error = standard_error(gap, followed.window)
    return Figures(
        kl=float(compared.kl.mean()),
        kl_error=standard_error(compared.kl, compared.window),
        kl_median=float(np.median(compared.kl)),
        kl_p99=float(np.percentile(compared.kl, 99)),
        top1=float(compared.agrees.mean()),
        perplexity=perplexity,
        reference_perplexity=reference,
        perplexity_change=change,
        perplexity_change_error=None if gap_error is None else (1 + change) * gap_error,
        flips_lost=int((compared.reference_is_right & ~compared.is_right).sum()),
        flips_gained=int((compared.is_right & ~compared.reference_is_right).sum()),
        predicted=len(gap),
        tokens=len(compared.kl),
        windows=len(np.unique(compared.window)),
        buckets=tuple(_buckets(compared)),
    )


def standard_error(values: Doubles, window: Ints) -> float | None:
    """Of the mean of `values` (tokens,), whose windows are independent draws of unequal length (a ratio's, linearized). None for one."""
    _, number = np.unique(window, return_inverse=True)
    sums = np.bincount(number, values - values.mean())  # (windows,)
    count = len(sums)
    return None if count < 2 else math.sqrt(count / (count - 1) * float((sums**2).sum())) / len(values)


def _buckets(compared: Positions) -> Iterator[Bucket]:
    longest = int(compared.index.max()) + 1
    for first, end in zip(BUCKETS, (*BUCKETS[1:], longest), strict=True):
        inside = compared.select((compared.index >= first) & (compared.index < end))
        if not len(inside.kl):
            return
        gap = (inside.nll - inside.reference_nll)[inside.is_followed]
        yield Bucket(
            first=first,
            last=min(end, longest) - 1,
            tokens=len(inside.kl),
            kl=float(inside.kl.mean()),
            kl_error=standard_error(inside.kl, inside.window),
            top1=float(inside.agrees.mean()),
            perplexity_change=math.expm1(float(gap.mean())) if len(gap) else None,
        )
