"""Smoothing: exact to fold, chosen by measured output error, and none where it does not help."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from taut.errors import UsageError
from taut.quant.algorithms import smoothquant

pytestmark = pytest.mark.fast
F32 = NDArray[np.float32]


def outliers(k: int = 256, size: float = 60.0) -> tuple[F32, F32, list[F32]]:
    """(absmax (K,), rows (64, K), two weights): three channels are `size` times the others."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, k)).astype(np.float32)
    rows[:, [7, k // 2, k - 5]] *= size
    weights = [(rng.standard_normal((n, k)) * 0.05).astype(np.float32) for n in (96, 32)]
    return np.abs(rows).max(axis=0), rows, weights


@pytest.mark.parametrize("scheme", ["int8", "int8-g64", "int8-static", "int4-g64"])
def test_outliers_are_smoothed_and_the_error_falls(scheme: str) -> None:
    absmax, rows, weights = outliers()
    found = smoothquant.search(absmax, rows, weights, scheme)
    assert found.alpha > 0
    assert set(found.errors) == {0.0, *smoothquant.ALPHAS}
    assert found.errors[found.alpha] == min(found.errors.values()) < 0.7 * found.errors[0.0]
    usual = np.median(found.scale)
    assert (found.scale[[7, 128, 251]] >= 4 * usual).all()


def test_the_error_is_that_of_the_product() -> None:
    """Against the formula written out with int8 by token."""
    absmax, rows, weights = outliers(96)  # 96 inputs: groups of 32
    found = smoothquant.search(absmax, rows, weights, "int8")
    total = 0.0
    for w in weights:
        scaled = w * found.scale
        s_w = np.abs(scaled).max(axis=1, keepdims=True) / 127
        x = (rows / found.scale).reshape(64, 3, 32)
        s_x = np.abs(x).max(axis=2, keepdims=True) / 127
        product = (np.rint(x / s_x) * s_x).reshape(64, 96) @ (np.rint(scaled / s_w) * s_w).T
        total += ((product - rows @ w.T) ** 2).sum() / ((rows @ w.T) ** 2).sum()
    assert found.errors[found.alpha] == pytest.approx(total / 2, rel=0.02)


def test_folding_changes_no_bit() -> None:
    absmax, rows, weights = outliers()
    scale = smoothquant.search(absmax, rows, weights, "int8").scale
    assert np.array_equal(np.exp2(np.rint(np.log2(scale))), scale)
    rng = np.random.default_rng(1)
    gain, bias = (rng.standard_normal(256).astype(np.float32) for _ in range(2))
    new_gain, new_bias, folded = smoothquant.fold(scale, gain, bias, weights)
    assert new_bias is not None
    normed = rows[:5] / np.float32(3)
    before, after = normed * gain + bias, normed * new_gain + new_bias
    assert np.array_equal(after * scale, before)
    for w, f in zip(weights, folded, strict=True):
        assert np.array_equal(after[0] * f, before[0] * w)
    assert smoothquant.fold(scale, gain, None, weights)[1] is None


def test_none_where_it_does_not_help() -> None:
    absmax, rows, weights = outliers(size=1.0)
    # Rows that are exact in int8, weights too: nothing can be better.
    rows, weights = np.sign(rows), [np.sign(w) for w in weights]
    found = smoothquant.search(absmax, rows, weights, "int8")
    assert (found.alpha, found.errors[0.0]) == (0.0, pytest.approx(0, abs=1e-9))
    assert (found.scale == 1).all()


@pytest.mark.parametrize("scheme", ["fp16", "w8a16"])
def test_float_inputs_need_no_smoothing(scheme: str) -> None:
    absmax, rows, weights = outliers()
    found = smoothquant.search(absmax, rows, weights, scheme)
    assert (found.alpha, found.errors) == (0.0, {})
    assert smoothquant.search(absmax, rows[:0], weights, "int8").alpha == 0


def test_channels_that_are_never_used_are_left_alone() -> None:
    absmax, rows, weights = outliers()
    absmax[3], rows[:, 3] = 0, 0
    for w in weights:
        w[:, 4] = 0
    scale = smoothquant.power_of_two(absmax, np.max([np.abs(w).max(axis=0) for w in weights], axis=0), 0.8)
    assert (scale[[3, 4]] == 1).all()
    assert np.isfinite(scale).all()
    assert (smoothquant.power_of_two(np.zeros(4), np.zeros(4), 0.5) == 1).all()


def test_strength_follows_the_formula() -> None:
    absmax, w_absmax = np.array([16.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0, 16.0])
    assert smoothquant.power_of_two(absmax, w_absmax, 0.5).tolist() == [4, 1, 1, 0.25]
    absmax, w_absmax = np.array([256.0, 1, 1, 1]), np.array([1, 1, 1, 2.0**-8])
    assert smoothquant.power_of_two(absmax, w_absmax, 0.75).tolist() == [16, 0.25, 0.25, 1]


def test_shapes_must_fit() -> None:
    absmax, rows, weights = outliers()
    with pytest.raises(UsageError, match="256 channels do not belong together"):
        smoothquant.search(absmax, rows, [weights[0].T], "int8")
