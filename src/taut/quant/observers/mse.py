"""mse: the range of least quantization error, clipping and rounding together, as a mean of |x - Q(x)|^2.4: of powers between 2 and 4
the one that llm-compressor's observer takes (its grid ends at 20 % off the range; here it goes on, for the histogram makes a try cheap).

The error of a bin is integrated exactly, its values being spread evenly: no bin is too wide for a fine step.
"""

from __future__ import annotations

import numpy as np

from taut.quant.schemes.int8 import QMAX
from taut.quant.statistics import F64, I64, Statistics

POWER = 2.4
TRIES = tuple(
    tuple(map(float, np.geomspace(*ends))) for ends in ((1, 2**-8, 33), (1.19, 1 / 1.19, 9), (1.04, 1 / 1.04, 9))
)  # ever finer
NARROW = 1e-3  # steps; a narrower bin counts as a point


def bounds(statistics: Statistics, *, sinks: bool = False) -> tuple[float, float]:
    """The best of both ends shrunk together, then of each alone, from there."""
    low, high, counts = statistics.distribution(sinks=sinks)
    least, greatest = statistics.range(sinks=sinks)
    best = (mean_error(low, high, counts, least, greatest), least, greatest)
    for shrinks in TRIES:
        for which in ((1, 1), (1, 0), (0, 1)):
            _, begin, end = best
            for shrink in shrinks:
                # An end beyond zero stays: static int8 covers zero.
                a = max(least, begin * shrink) if which[0] and begin < 0 else begin
                b = min(greatest, end * shrink) if which[1] and end > 0 else end
                if a <= b:
                    best = min(best, (mean_error(low, high, counts, a, b), a, b))
    return best[1], best[2]


def mean_error(low: F64, high: F64, counts: I64, begin: float, end: float) -> float:
    """Mean of |x - Q(x)|^POWER over bins [low, high] that hold `counts` values, Q covering [begin, end] and 0 as static int8 does."""
    begin, end = min(begin, 0.0), max(end, 0.0)
    scale = (end - begin) / (2 * QMAX)
    if not scale:
        return float((counts * np.maximum(np.abs(low), np.abs(high)) ** POWER).sum() / counts.sum())
    a, b = ((edge - (begin + end) / 2) / scale for edge in (low, high))
    middle = (a + b) / 2
    at_point = np.abs(middle - np.clip(np.rint(middle), -QMAX, QMAX)) ** POWER
    width = b - a
    spread = (_antiderivative(b) - _antiderivative(a)) / np.where(width > NARROW, width, 1)
    error = np.where(width > NARROW, spread, at_point)
    return float((counts * error).sum() / counts.sum() * scale**POWER)


def _antiderivative(t: F64) -> F64:
    """Of |t - clip(rint(t))|^POWER: a whole cell's integral for every code below, and the part of the cell that t is in."""
    code = np.clip(np.rint(t), -QMAX, QMAX)
    rest = t - code
    cell = 2 * 0.5 ** (POWER + 1) / (POWER + 1)
    result: F64 = code * cell + np.sign(rest) * np.abs(rest) ** (POWER + 1) / (POWER + 1)
    return result
