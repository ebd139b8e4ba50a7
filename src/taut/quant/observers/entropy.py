"""entropy: the range whose quantized distribution loses least information, by KL divergence (Migacz 2017, "8-bit inference with
TensorRT"): values beyond the threshold join the last bin of the reference, the bins within are merged to 128 levels and spread again over
those that hold values. TensorRT cuts |x| up to its maximum into 2,048 bins and tries the first 128, 129, …; here every threshold gets
that many of its own, so that one outlier does not take the resolution away.
"""

from __future__ import annotations

import numpy as np

from taut.quant.statistics import F64, I64, Statistics

LEVELS = 128
PARTS = 16  # bins of a level
SKEW = 1e-4  # of the reference in what it is compared with (Lee 2001, skew divergence): no bin makes it infinite
THRESHOLDS = tuple(float(t) for t in np.geomspace(1, 1 / 256, 129))  # shares of the greatest magnitude


def bounds(statistics: Statistics, *, sinks: bool = False) -> tuple[float, float]:
    """One threshold for both signs, within the range."""
    low, high, counts = statistics.distribution(sinks=sinks)
    least, greatest = statistics.range(sinks=sinks)
    edges, below = _magnitudes(low, high, counts)
    most = max(abs(least), abs(greatest))
    if not most:
        return least, greatest
    divergences = [(_divergence(edges, below, most * share), -share) for share in THRESHOLDS]
    threshold = -min(divergences)[1] * most
    return max(least, -threshold), min(greatest, threshold)


def _magnitudes(low: F64, high: F64, counts: I64) -> tuple[F64, F64]:
    """The cumulative distribution of |x|: `below[i]` values lie below `edges[i]`."""
    inner, outer = np.minimum(np.abs(low), np.abs(high)), np.maximum(np.abs(low), np.abs(high))
    edges = np.unique(np.concatenate([[0.0], inner, outer]))
    below = np.zeros(len(edges))
    for sign in (low >= 0, low < 0):  # bins of one sign do not overlap
        order = np.argsort(inner[sign], kind="stable")
        ends = np.stack([inner[sign][order], outer[sign][order]], axis=1).reshape(-1)
        sums = np.cumsum(counts[sign][order])
        values = np.stack([sums - counts[sign][order], sums], axis=1).reshape(-1)
        if len(ends):
            below += np.interp(edges, ends, values, left=0)
    return edges, below


def _divergence(edges: F64, below: F64, threshold: float) -> float:
    """KL of the clipped distribution against its quantized version, in nats."""
    cuts = np.linspace(0, threshold, LEVELS * PARTS + 1)
    inside = np.diff(np.interp(cuts, edges, below))
    clipped = inside.copy()
    clipped[-1] += below[-1] - np.interp(threshold, edges, below)
    held = inside > 0
    levels = inside.reshape(LEVELS, PARTS).sum(axis=1)
    spread = np.repeat(levels / np.maximum(held.reshape(LEVELS, PARTS).sum(axis=1), 1), PARTS) * held
    if not spread.sum():
        return float("inf")
    p, q = clipped / clipped.sum(), spread / spread.sum()
    q = (1 - SKEW) * q + SKEW * p  # the last bin may hold nothing but what was clipped
    both = p > 0
    return float((p[both] * np.log(p[both] / q[both])).sum())
