"""Observers against brute force over the values themselves."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from quant.test_statistics import gather
from taut.errors import UsageError
from taut.quant.observers import OBSERVERS, entropy, find, mse, percentile

LENGTHS = (200,) * 10
Doubles = NDArray[np.float64]


def arrays() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    shape = (sum(LENGTHS), 32)
    normal = rng.standard_normal(shape)
    made = {
        "normal": normal,
        "laplace": rng.laplace(size=shape),
        "outliers": normal * np.where(rng.random(shape) < 1e-4, 60, 1),
        "shifted": normal + 2,
        "relu": np.maximum(normal, 0),
        "silu": 3 * normal / (1 + np.exp(-3 * normal)),
        "constant": np.full(shape, 2.5),
        "zero": np.zeros(shape),
    }
    return {name: x.astype(np.float32) for name, x in made.items()}


NAMES = ("normal", "laplace", "outliers", "shifted", "relu", "silu")


def error(x: NDArray[np.float32], low: float, high: float) -> float:
    """Mean |x - Q(x)|^2.4 of static int8."""
    low, high = min(low, 0), max(high, 0)
    scale, offset = (high - low) / 254, -(high + low) / 2
    q = np.clip(np.rint((x.astype(np.float64) + offset) / scale), -127, 127)
    return float((np.abs(x - (q * scale - offset)) ** 2.4).mean())


@pytest.mark.parametrize("observer", OBSERVERS)
@pytest.mark.parametrize("name", [*NAMES, "constant", "zero"])
def test_bounds_lie_within_the_range(observer: str, name: str) -> None:
    x = arrays()[name]
    for sinks in (True, False):
        low, high = OBSERVERS[observer](gather(x, LENGTHS), sinks=sinks)
        assert x.min() <= low <= high <= x.max()


def test_sinks_count_only_when_they_are_to() -> None:
    x = arrays()["normal"]
    x[0] = 1000  # the first token of the first window
    found = gather(x, LENGTHS)
    for name, bounds in OBSERVERS.items():
        assert bounds(found)[1] < 6, name
    assert OBSERVERS["minmax"](found, sinks=True)[1] == 1000


def test_minmax_and_ema() -> None:
    x = arrays()["laplace"]
    windows = x.reshape(len(LENGTHS), -1)
    low, high = windows[0].min(), windows[0].max()
    for window in windows[1:]:
        low, high = 0.99 * low + 0.01 * window.min(), 0.99 * high + 0.01 * window.max()
    found = gather(x, LENGTHS, sinks=0)
    assert OBSERVERS["ema"](found) == pytest.approx((low, high), rel=1e-5)
    assert OBSERVERS["minmax"](found) == (x.min(), x.max())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("percent", [99.0, 99.99])
def test_percentile_is_that_of_the_values_within_a_bin(name: str, percent: float) -> None:
    x = arrays()[name]
    low, high = percentile.bounds(gather(x, LENGTHS), sinks=True, percent=percent)
    expected = np.percentile(x, [100 - percent, percent], method="inverted_cdf")
    assert low == pytest.approx(expected[0], rel=0.04, abs=1e-6)
    assert high == pytest.approx(expected[1], rel=0.04, abs=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_mse_is_nearly_the_best_there_is(name: str) -> None:
    x = arrays()[name]
    low, high = mse.bounds(gather(x, LENGTHS), sinks=True)
    shrinks = np.linspace(0.04, 1, 25)
    least = min(error(x, float(x.min()) * a, float(x.max()) * b) for a in shrinks[::3] for b in shrinks)
    assert error(x, low, high) <= 1.06 * least


@pytest.mark.parametrize("name", NAMES)
def test_the_histograms_error_is_that_of_the_values(name: str) -> None:
    x = arrays()[name]
    low, high, counts = gather(x, LENGTHS).distribution()
    for share in (1.0, 0.6, 0.2):
        ends = float(x.min()) * share, float(x.max()) * share
        assert mse.mean_error(low, high, counts, *ends) == pytest.approx(error(x, *ends), rel=0.03)


def divergence(x: NDArray[np.float32], threshold: float) -> float:
    """KL of |x| clipped against its 128 levels, from the values themselves, in 2,048 bins."""
    magnitude = np.abs(x.astype(np.float64)).reshape(-1)
    inside = np.histogram(magnitude[magnitude <= threshold], 2048, (0, threshold))[0].astype(np.float64)
    p = inside.copy()
    p[-1] += (magnitude > threshold).sum()
    held = inside > 0
    q = np.zeros(2048)
    for level in range(128):
        own = slice(16 * level, 16 * level + 16)
        q[own] = held[own] * inside[own].sum() / max(held[own].sum(), 1)
    p, q = p / p.sum(), q / q.sum()
    q = q + 1e-4 * (p - q)
    return float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum())


@pytest.mark.parametrize("name", ["laplace", "outliers", "silu"])
def test_entropy_clips_where_information_is_lost_least(name: str) -> None:
    x = arrays()[name]
    low, high = entropy.bounds(gather(x, LENGTHS), sinks=True)
    threshold = max(abs(low), abs(high))
    most = float(np.abs(x).max())
    loss = {share: divergence(x, most * share) for share in np.geomspace(1, 1 / 128, 40)}
    assert divergence(x, threshold) <= min(loss.values()) + 0.006  # what 64,000 values leave to chance
    assert divergence(x, threshold) < max(loss.values()) / 10


def test_entropy_leaves_a_lone_outlier_out() -> None:
    x = arrays()["normal"]
    x[700, 3] = 1000
    low, high = entropy.bounds(gather(x, LENGTHS))
    assert 2.5 < high < 8
    assert -8 < low < -2.5


def test_an_unknown_observer_is_an_error_that_names_the_others() -> None:
    assert find("ema") is OBSERVERS["ema"]
    with pytest.raises(UsageError, match="minmax, ema, percentile, mse, entropy"):
        find("median")
