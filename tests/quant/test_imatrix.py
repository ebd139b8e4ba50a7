"""The weighted scale search: never worse than plain rounding, much better on spread inputs, and its numbers stay the scheme's."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from taut.errors import ModelFormatError, UsageError
from taut.quant.algorithms import dequantize, imatrix, quantize, rtn, search
from taut.quant.schemes import int4, int8

pytestmark = pytest.mark.fast
F32 = NDArray[np.float32]


def weights(n: int = 96, k: int = 256, seed: int = 0) -> tuple[F32, F32]:
    """(w (N, K) with a heavy tail, importance (K,) over three decades)."""
    rng = np.random.default_rng(seed)
    w = (rng.standard_t(4, (n, k)) * 0.03).astype(np.float32)
    return w, np.exp(1.5 * rng.standard_normal(k)).astype(np.float32)


def loss(w: F32, found: F32, importance: F32) -> NDArray[np.float64]:
    """As imatrix.py's docstring has it, (N, K)."""
    wide = w.astype(np.float64)
    v = importance * np.sqrt((wide**2).mean(axis=1, keepdims=True) + wide**2)
    return np.asarray(v * (wide - found) ** 2)


def of_groups(losses: NDArray[np.float64], group: int) -> NDArray[np.float64]:
    return np.asarray(losses.reshape(len(losses), -1, group or losses.shape[1]).sum(axis=2))


CASES = [
    ("int4-g32", {}, 0.65),
    ("int4-g64", {}, 0.7),
    ("int4-g128", {}, 0.75),
    ("int4-g32", {"symmetric": True}, 0.85),
    ("int4-g32", {"clip": False}, 0.75),
    ("int4-g32", {"clip": False, "symmetric": True}, 0.99),
    ("int8-g64", {}, 0.95),
    ("int8", {}, 0.99),
    ("int8", {"clip": False}, 1.0),
]


@pytest.mark.parametrize(("scheme", "options", "share"), CASES, ids=lambda value: str(value))
def test_no_group_loses_more_and_all_together_lose_less(scheme: str, options: dict[str, bool], share: float) -> None:
    w, importance = weights()
    symmetric = {"symmetric": True} if options.get("symmetric") else {}
    plain = quantize(w, scheme, **symmetric)  # type: ignore[arg-type]
    found = quantize(w, scheme, importance=importance, algorithm="imatrix", **options)  # type: ignore[arg-type]
    assert not isinstance(found, np.ndarray)
    before = of_groups(loss(w, dequantize(plain), importance), found.group)
    after = of_groups(loss(w, dequantize(found), importance), found.group)
    assert (after <= before * (1 + 1e-4)).all()
    assert after.sum() <= share * before.sum()


def test_the_search_is_near_the_best_there_is() -> None:
    """One group against ten thousand pairs of scale and minimum."""
    w, importance = weights(1, 32, seed=3)
    found = imatrix.int4_weight(w, 32, importance)
    low, high = float(w.min()), float(w.max())
    best = min(
        loss(w, (np.clip(np.rint((w - start) / step), 0, 15) * step + start).astype(np.float32), importance).sum()
        for start in np.linspace(low - 0.1 * (high - low), low + 0.4 * (high - low), 100)
        for step in np.linspace((high - low) / 30, (high - low) / 14, 100)
    )
    assert loss(w, int4.dequantize(found), importance).sum() <= 1.1 * best


def test_codes_are_the_nearest_for_the_numbers_that_are_stored() -> None:
    w, importance = weights()
    q = imatrix.int4_weight(w, 32, importance)
    assert (q.scale.dtype, q.offset.dtype, q.u.dtype) == (np.float16, np.float16, np.uint8)
    error = np.abs(w - int4.dequantize(q)).reshape(len(w), -1, 32)
    step = np.abs(q.scale.astype(np.float32)) * q.column[:, None]
    inside = (q.u > 0) & (q.u < 15)
    assert (error <= step[:, :, None] * 0.5001)[inside.reshape(error.shape)].all()


def test_blocks_of_rows_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w, importance = weights(200, 128)
    wanted = imatrix.int4_weight(w, 32, importance)
    monkeypatch.setattr(imatrix, "_NUM_THREADS", 5)
    again = imatrix.int4_weight(w, 32, importance)
    one = imatrix.int4_weight(w[7:8], 32, importance)
    for name in ("u", "scale", "offset", "column"):
        assert np.array_equal(getattr(wanted, name), getattr(again, name))
        assert np.array_equal(getattr(wanted.rows(slice(7, 8)), name), getattr(one, name))


def test_a_wrong_order_of_groups_or_rows_is_seen() -> None:
    """What is stored belongs to its own group: numbers moved by one group or row lose far more."""
    w, importance = weights(64, 256)
    w *= np.exp(np.random.default_rng(5).standard_normal((64, 8))).repeat(32, axis=1).astype(np.float32)
    q = imatrix.int4_weight(w, 32, importance)
    right = loss(w, int4.dequantize(q), importance).sum()
    for axis in (0, 1):
        moved = int4.Quantized(q.u, np.roll(q.scale, 1, axis), np.roll(q.offset, 1, axis), q.column)
        assert loss(w, int4.dequantize(moved), importance).sum() > 20 * right
    e = imatrix.int8_weight(w, 64, importance)
    right = loss(w, e.dequantized(), importance).sum()
    assert loss(w, int8.Quantized(e.q, np.roll(e.scale, 1, 1)).dequantized(), importance).sum() > 20 * right


@pytest.mark.parametrize("symmetric", [False, True])
def test_without_clipping_no_weight_is_further_than_half_a_step(symmetric: bool) -> None:
    w, importance = weights()
    w[:, 5] *= 30
    importance[5] = 1e-4  # the search would love to cut it
    q = imatrix.int4_weight(w, 32, importance, symmetric=symmetric, clip=False)
    step = np.abs(q.scale.astype(np.float32)) * q.column[:, None]
    error = np.abs(w - int4.dequantize(q)).reshape(len(w), -1, 32).max(axis=2)
    plain = rtn.int4_weight(w, 32, symmetric=symmetric)  # a symmetric one cuts the end that has seven codes
    limit = np.abs(w - int4.dequantize(plain)).reshape(error.shape + (32,)).max(axis=2) if symmetric else 0
    assert (error <= np.maximum(step * 0.51, limit)).all()
    cut = imatrix.int4_weight(w, 32, importance)
    assert (np.abs(w - int4.dequantize(cut))[:, 5] > 0.51 * step[:, 0]).any(), "the case shows nothing"


def test_symmetric_minima_are_exact_in_float16() -> None:
    w, importance = weights()
    w[:, :32] *= 1e-3  # scales so small that their sixteenth is subnormal
    w[:, 32:64] *= 1e-7
    for q in (rtn.int4_weight(w, 32, symmetric=True), imatrix.int4_weight(w, 32, importance, symmetric=True)):
        assert rtn.is_symmetric(q)
        codes = q.u.astype(np.float32).reshape(len(w), -1, 32) - 8
        wide = codes * q.scale.astype(np.float32)[:, :, None] * q.column[:, None, None]
        assert np.array_equal(wide.reshape(w.shape), int4.dequantize(q))
    assert not rtn.is_symmetric(rtn.int4_weight(w, 32))


def test_inputs_never_seen_count_as_their_group() -> None:
    w, importance = weights(32, 128)
    importance[:32] = 2.0
    filled = importance.copy()
    importance[[3, 9]] = (0, np.nan)
    wanted, found = imatrix.int4_weight(w, 32, filled), imatrix.int4_weight(w, 32, importance)
    assert np.array_equal(wanted.u, found.u)
    nothing = imatrix.int4_weight(w, 32, np.zeros(128, np.float32))
    assert np.array_equal(nothing.u, imatrix.int4_weight(w, 32).u)


def test_odd_weights() -> None:
    """Zeros, constants, one value in a group, subnormal rows, rows of all sizes: what plain rounding gives, or less loss; no warning."""
    w, importance = weights(8, 128)
    w[0] = 0
    w[1] = 0.25
    w[2, :64] = 0
    w[2, 5] = 3
    w[3] *= 1e-38
    w[4] *= 1e-20
    w[5] *= 1e20
    w[6, 32:64] = -0.5
    for scheme in ("int4-g32", "int8-g64", "int8"):
        plain, found = quantize(w, scheme), quantize(w, scheme, importance=importance, algorithm="imatrix")
        wide = dequantize(found)
        assert np.isfinite(wide).all()
        assert (loss(w, wide, importance).sum(axis=1) <= loss(w, dequantize(plain), importance).sum(axis=1) * (1 + 1e-4)).all()
        assert not wide[0].any()


@pytest.mark.parametrize("scheme", ["int4-g32", "int8-g64"])
def test_rounding_and_fitting_again_helps(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    w, importance = weights()
    with_rounds = dequantize(quantize(w, scheme, importance=importance, algorithm="imatrix"))
    monkeypatch.setattr(search, "_ROUNDS", 0)
    without = dequantize(quantize(w, scheme, importance=importance, algorithm="imatrix"))
    assert loss(w, with_rounds, importance).sum() < loss(w, without, importance).sum()


def test_a_dead_fit_is_never_taken() -> None:
    block = search.Block(np.full((32, 3), 0.7, np.float32), np.ones((32, 3), np.float32))
    own = np.zeros((32, 3), np.float32), np.zeros(3, np.float32), np.full(3, -0.7 / 128, np.float32)
    codes, scales, offsets = search.best_affine(block, own, True)
    assert np.allclose(codes * scales - 128 * offsets, 0.7, atol=1e-3)


def test_floats_are_rounded_once_and_must_fit() -> None:
    w, _ = weights(4, 32)
    assert np.array_equal(quantize(w, "fp16"), w.astype(np.float16))
    assert quantize(w, "bf16").dtype.name == "bfloat16"  # type: ignore[union-attr]
    w[1, 3] = 7e4
    assert quantize(w, "bf16").shape == w.shape  # type: ignore[union-attr]
    with pytest.raises(ModelFormatError, match=r"q_proj.*1 weights do not fit fp16 \(the largest is 7e\+04\).*--pin"):
        quantize(w, "fp16", name="q_proj")
    w[1, 3] = np.nan
    for scheme in ("fp32", "int8", "int4-g32", "w8a16"):
        with pytest.raises(ModelFormatError, match="NaN or infinite"):
            quantize(w, scheme, algorithm="imatrix")


def test_what_does_not_fit_is_refused() -> None:
    w, importance = weights(4, 96)
    with pytest.raises(UsageError, match="unknown scheme 'int5'; accepted are fp32"):
        quantize(w, "int5")
    with pytest.raises(UsageError, match="unknown algorithm 'awq'"):
        quantize(w, "int8", algorithm="awq")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="down has 96 inputs, which groups of 64 do not divide"):
        quantize(w, "int8-g64", name="down")
    with pytest.raises(UsageError, match="symmetric is a choice of int4"):
        quantize(w, "int8", symmetric=True)
    with pytest.raises(UsageError, match=r"needs \(96,\)"):
        quantize(w, "int4-g32", importance=importance[:32], algorithm="imatrix")
    for scheme in ("int8", "int8-static", "w8a16"):
        q = quantize(w, scheme)
        assert isinstance(q, int8.Quantized)
        assert q.group == 0
