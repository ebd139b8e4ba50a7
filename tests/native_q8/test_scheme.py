"""The numpy definition of the int8 scheme against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from taut.errors import ModelFormatError, UsageError
from taut.quant.schemes import int8


@pytest.mark.parametrize(
    ("k", "group", "begin", "segment"),
    [
        (512, 128, (0, 128, 256, 384, 512), (0, 1, 2, 3, 4)),
        (576, 64, tuple(range(0, 577, 64)), (0, 3, 5, 7, 9)),
        (576, 0, (0, 160, 320, 448, 576), (0, 1, 2, 3, 4)),
        (96, 32, (0, 32, 64, 96), (0, 1, 2, 3, 3)),
        (8, 0, (0, 4, 8), (0, 1, 2, 2, 2)),
        (3, 0, (0, 4), (0, 1, 1, 1, 1)),
    ],
)
def test_pieces(k: int, group: int, begin: tuple[int, ...], segment: tuple[int, ...]) -> None:
    cut = int8.pieces(k, group)
    assert (cut.begin, cut.segment, cut.count) == (begin, segment, len(begin) - 1)


@pytest.mark.parametrize(("k", "group"), [(2048, 128), (576, 64), (96, 32), (100, 0)])
def test_default_group(k: int, group: int) -> None:
    assert int8.default_group(k) == group


@pytest.mark.parametrize(("k", "group"), [(576, 128), (128, 48), (0, 0)])
def test_a_group_that_does_not_fit_is_refused(k: int, group: int) -> None:
    with pytest.raises(UsageError):
        int8.pieces(k, group)


def test_row_layout() -> None:
    layout = int8.row_layout(576, 64)
    assert layout.scales_offset == 576
    assert layout.sums_offset == layout.scales_offset + 36
    assert layout.row_bytes % 64 == 0
    assert layout.sums_offset + 36 <= layout.row_bytes == int8.quantized_row_bytes(576, 64)


def test_fma32_is_correctly_rounded() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(3000).astype(np.float32) for _ in range(3))
    c[::3] = -(a * b)[::3]  # cancellation: the product's low half decides
    b[::5] = a[::5]
    fused = int8.fma32(a, b, c)
    assert (fused != a * b + c).any()
    for x, y, z, got in zip(a, b, c, fused, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        miss = abs(Fraction(float(got)) - exact)
        assert all(miss <= abs(Fraction(float(np.nextafter(got, np.float32(side)))) - exact) for side in (-np.inf, np.inf))


def test_weights_survive_packing() -> None:
    q, scale = int8.quantize_weight(np.random.default_rng(0).standard_normal((70, 30)).astype(np.float32))
    packed, padded = int8.pack(q, scale)
    assert packed.shape == int8.packed_shape(70, 30) == (2, 8, 64, 4)
    np.testing.assert_array_equal(int8.unpack(packed, 70, 30), q)
    assert padded[70:].tolist() == [0] * 58
    assert (packed[1, :, 6:] == 128).all()
    assert (packed[:, 7, :, 2:] == 128).all()


def test_rounding_is_to_even_and_symmetric() -> None:
    q, scale = int8.quantize_weight(np.array([[127, 0.5, 1.5, -0.5, -1.5, -127]], np.float32))
    assert q.tolist() == [[127, 0, 2, 0, -2, -127]]
    assert scale.tolist() == [1.0]


def test_zero_and_tiny_rows_get_scale_zero() -> None:
    q, scale = int8.quantize_weight(np.array([[0, 0, 0, 0], [1e-44, 0, 0, 0]], np.float32))
    assert not q.any()
    assert not scale.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(value: float) -> None:
    w = np.ones((5, 8), np.float32)
    w[3, 2] = value
    with pytest.raises(ModelFormatError, match="row 3") as caught:
        int8.quantize_weight(w, name="layers.0.q")
    assert caught.value.field == "layers.0.q"


@pytest.mark.parametrize("group", [0, 32])
def test_a_row_that_is_not_finite_marks_only_its_groups(group: int) -> None:
    x = np.ones((3, 64), np.float32)
    x[1, 40] = np.inf
    q, scales, sums = int8.quantize_rows(x, group)
    nan = np.isnan(scales)
    assert not nan[[0, 2]].any()
    assert nan[1].tolist() == ([False, True] if group else [True, True])
    assert not q[1][40:].any()
    np.testing.assert_array_equal(sums[0], -128 * 127 * np.diff(int8.pieces(64, group).begin))


def test_linear_reference_is_the_exact_product_within_rounding() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 576)).astype(np.float32), rng.standard_normal((70, 576)).astype(np.float32)
    q, scale = int8.quantize_weight(w)
    packed, w_scale = int8.pack(q, scale)
    for group in (0, 32, 64):
        rows = int8.quantize_rows(x, group)
        got = int8.linear_reference(rows, int8.pieces(576, group), packed, w_scale, 70)
        widths = np.diff(int8.pieces(576, group).begin)
        exact = (rows[0] * np.repeat(rows[1].astype(np.float64), widths, axis=1)) @ (q * scale[:, None].astype(np.float64)).T
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
