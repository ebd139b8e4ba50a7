"""ema: exponential moving averages, over the windows of text, of their least and greatest values, so that an outlier of one window
counts for a hundredth (Jacob et al. 2018, arXiv 1712.05877, section 3.1; averaging constant 0.01, as in llm-compressor)."""

from __future__ import annotations

from taut.quant.statistics import Statistics


def bounds(statistics: Statistics, *, sinks: bool = False) -> tuple[float, float]:
    return statistics.average_range(sinks=sinks)
