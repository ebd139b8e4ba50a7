"""minmax: the least and the greatest value that were seen. Nothing of the calibration text is clipped; one outlier widens every step."""

from __future__ import annotations

from taut.quant.statistics import Statistics


def bounds(statistics: Statistics, *, sinks: bool = False) -> tuple[float, float]:
    return statistics.range(sinks=sinks)
