"""percentile: all but a small share of the values at either end (Wu et al. 2020, arXiv 2004.09602, section 5.1: 99.99 %). Read from the
histogram, so right to within a bin, 1/32 of the value."""

from __future__ import annotations

import numpy as np

from taut.quant.statistics import Statistics

PERCENT = 99.99


def bounds(statistics: Statistics, *, sinks: bool = False, percent: float = PERCENT) -> tuple[float, float]:
    """`percent` of all values lie below the upper end, and as many above the lower."""
    low, high, counts = statistics.distribution(sinks=sinks)
    below = np.concatenate([[0], np.cumsum(counts)])
    tail = below[-1] * (1 - percent / 100)

    def value(rank: float) -> float:
        """With `rank` values below it, those of a bin being spread evenly."""
        at = min(max(int(np.searchsorted(below, rank, side="right")) - 1, 0), len(counts) - 1)
        return float(low[at] + (high[at] - low[at]) * min((rank - below[at]) / counts[at], 1.0))

    return value(tail), value(below[-1] - tail)
