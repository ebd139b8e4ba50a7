"""Observers: how the range that static int8 covers is chosen from a tensor's statistics. One file each, all with

    bounds(statistics, *, sinks=False) -> (low, high)

`sinks`: whether a sequence's first tokens count; without them their rows, far outside, fall back to scales of their own at run time
(quant/schemes/static.py). Statistics in, numbers out; knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from taut.errors import UsageError
from taut.quant.observers import ema, entropy, minmax, mse, percentile
from taut.quant.statistics import Statistics

__all__ = ["OBSERVERS", "Observer", "find"]


class Observer(Protocol):
    def __call__(self, statistics: Statistics, *, sinks: bool = ...) -> tuple[float, float]: ...


OBSERVERS: Mapping[str, Observer] = MappingProxyType(
    {
        "minmax": minmax.bounds,
        "ema": ema.bounds,
        "percentile": percentile.bounds,
        "mse": mse.bounds,
        "entropy": entropy.bounds,
    }
)


def find(name: str) -> Observer:
    """The observer called `name`; UsageError when there is none."""
    if name not in OBSERVERS:
        raise UsageError(f"no observer named {name!r}; accepted: {', '.join(OBSERVERS)}")
    return OBSERVERS[name]
