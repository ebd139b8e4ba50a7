"""The numpy definition of the int4 scheme against exact arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

from taut.errors import ModelFormatError
from taut.quant.schemes import int4, int8


def weights(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32)


@pytest.mark.parametrize(
    ("k", "wanted", "group"), [(2048, 128, 128), (2048, 32, 32), (576, 128, 64), (96, 128, 32), (100, 128, 0)]
)
def test_the_group_divides_the_inputs(k: int, wanted: int, group: int) -> None:
    assert int4.group_for(k, wanted) == group


@pytest.mark.parametrize("group", int4.GROUPS)
def test_weights_survive_packing(group: int) -> None:
    q = int4.quantize_weight(weights(70, 384), group)
    packed, column = int4.pack(q)
    assert packed.shape == int4.packed_shape(70, 384, group) == (2, 384 // group, group * 32 + 256)
    assert packed.dtype == np.uint8 and not column[70:].any()
    again = int4.unpack(packed, column, 70, 384)
    for field in ("u", "scale", "offset", "column"):
        np.testing.assert_array_equal(getattr(again, field), getattr(q, field))


@pytest.mark.parametrize("group", int4.GROUPS)
@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_no_weight_is_further_off_than_half_a_level(group: int, size: float) -> None:
    w = weights(20, 256) * np.float32(size)
    q = int4.quantize_weight(w, group)
    grouped = w.reshape(20, -1, group)
    level = (grouped.max(axis=2) - grouped.min(axis=2)) / int4.LEVELS
    off = np.abs(int4.dequantize(q) - w).reshape(grouped.shape)
    rounding = np.abs(w).max(axis=1)[:, None, None] * 2.0**-9  # of scale and offset to float16
    assert (off <= level[:, :, None] / 2 + rounding).all()
    assert (q.u.min(), q.u.max()) == (0, int4.LEVELS)


def test_a_group_of_equal_weights_and_rows_of_zeros_are_kept() -> None:
    w = np.zeros((3, 64), np.float32)
    w[1] = 0.75
    w[2] = 1e-42  # subnormal: too small for an inverse
    np.testing.assert_array_equal(int4.dequantize(int4.quantize_weight(w, 32))[:2], w[:2])
    assert not int4.dequantize(int4.quantize_weight(w, 32))[2].any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    w = np.ones((5, 32), np.float32)
    w[3, 2] = value
    with pytest.raises(ModelFormatError, match="row 3") as caught:
        int4.quantize_weight(w, 32, name="layers.0.q")
    assert caught.value.field == "layers.0.q"


@pytest.mark.parametrize("group", int4.GROUPS)
def test_linear_reference_is_the_exact_product_within_rounding(group: int) -> None:
    w, x = weights(70, 384), weights(5, 384, 1)
    q, rows = int4.quantize_weight(w, group), int8.quantize_rows(x, group)
    bias = weights(1, 70, 2)[0]
    wide = (rows[0] * np.repeat(rows[1].astype(np.float64), group, axis=1)) @ int4.dequantize(q).astype(np.float64).T + bias
    np.testing.assert_allclose(int4.linear_reference(rows, q, bias), wide, rtol=2e-5, atol=2e-5)


def test_smaller_groups_lose_less() -> None:
    w = weights(64, 1024)
    losses = [float(np.square(int4.dequantize(int4.quantize_weight(w, group)) - w).mean()) for group in int4.GROUPS]
    assert losses[0] > losses[1] > losses[2]
