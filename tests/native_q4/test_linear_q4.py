"""The int4 linear and its packer: every ISA gives the bits of their numpy definition, whatever the rows, tails, groups and splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from native_q8.harness import ISAS, Floats, aligned, same_bits
from taut.errors import ModelFormatError
from taut.kernels import native
from taut.quant.schemes import int4, int8

pytestmark = [pytest.mark.native, pytest.mark.skipif(not ISAS, reason="the native core is not built")]
every_isa = pytest.mark.parametrize("isa", ISAS)
every_group = pytest.mark.parametrize("group", int4.GROUPS)
MANY_ROWS = 40


@dataclass(frozen=True)
class Problem:
    rows: tuple[Any, Any, Any]  # of int8.quantize_rows
    weight: int4.Quantized
    bias: Floats | None = None

    def first_rows(self, count: int) -> Problem:
        q, scales, sums = self.rows
        return replace(self, rows=(q[:count], scales[:count], sums[:count]))


def problem(rows: int, k: int, n: int, group: int, *, bias: bool = False, seed: int = 0) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k)).astype(np.float32) * rng.lognormal(0, 2, (rows, 1)).astype(np.float32)
    w = rng.standard_normal((n, k)).astype(np.float32) * rng.lognormal(0, 3, (n, 1)).astype(np.float32)
    shift = rng.standard_normal(n).astype(np.float32) if bias else None
    return Problem(int8.quantize_rows(x, group), int4.quantize_weight(w, group), shift)


def reference(p: Problem) -> Floats:
    return int4.linear_reference(p.rows, p.weight, p.bias)


def run(p: Problem, isa: str, *, cuts: Sequence[int] | None = None, pool: Any = None) -> Floats:
    n, k = p.weight.u.shape
    group = p.weight.group
    layout, cut = int8.row_layout(k, group), int8.pieces(k, group)
    packed, column = int4.pack(p.weight)
    y = np.full((len(p.rows[0]), n), np.nan, np.float32)
    bias = None if p.bias is None else np.concatenate([p.bias, np.zeros(len(column) - n, np.float32)])
    native.module().linear(
        aligned(int8.write_rows(*p.rows, layout)), layout.row_bytes, layout.scales_offset, list(cut.begin), list(cut.segment),
        aligned(packed), column, bias, y, rows=[0, len(y)] if cuts is None else list(cuts), group=group, pool=pool, isa=isa,
    )  # fmt: skip
    return y


@every_isa
@pytest.mark.parametrize(("k", "group"), [(576, 32), (576, 64), (384, 128), (1280, 128), (96, 32), (64, 64), (32, 32)])
def test_every_row_count(isa: str, k: int, group: int) -> None:
    p = problem(MANY_ROWS, k, 130, group, bias=k % 64 == 0)
    expected = reference(p)
    for rows in range(1, MANY_ROWS + 1):
        assert same_bits(run(p.first_rows(rows), isa), expected[:rows]), rows


@every_isa
@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 127, 192])
@pytest.mark.parametrize("rows", [9, 31])
def test_columns_beyond_n_are_not_written(isa: str, n: int, rows: int) -> None:
    p = problem(rows, 256, n, 128, bias=True)
    assert same_bits(run(p, isa), reference(p))


@every_isa
@every_group
@pytest.mark.parametrize("rows", [100, 193, 390])
def test_many_rows(isa: str, rows: int, group: int) -> None:
    p = problem(rows, 640, 70, group)
    assert same_bits(run(p, isa), reference(p))


@every_isa
@every_group
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_largest_values_do_not_overflow(isa: str, group: int, rows: int) -> None:
    for sign in (1, -1):
        q = np.full((rows, 1024), 127 * sign, np.int8)
        q[1::2] *= -1
        sums = np.add.reduceat(q, int8.pieces(1024, group).begin[:-1], axis=1, dtype=np.int32) * -128
        one = np.ones((65, 1024 // group), np.float16)
        weight = int4.Quantized(np.full((65, 1024), 15, np.uint8), one, one, np.ones(65, np.float32))
        p = Problem((q, np.ones((rows, 1024 // group), np.float32), sums.astype(np.int32)), weight)
        assert same_bits(run(p, isa), reference(p))


@every_isa
@pytest.mark.parametrize("rows", [12, 40])
def test_rows_that_are_not_finite_stay_alone(isa: str, rows: int) -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((rows, 256)).astype(np.float32), rng.standard_normal((65, 256)).astype(np.float32)
    x[3], x[5, 7], x[6, 200] = 0, np.nan, np.inf
    p = Problem(int8.quantize_rows(x, 64), int4.quantize_weight(w, 64))
    y = run(p, isa)
    assert same_bits(y, reference(p))
    assert not y[3].any() and np.isnan(y[[5, 6]]).all()
    assert not np.isnan(np.delete(y, [5, 6], axis=0)).any()


@every_isa
@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 40], [0, 17, 17, 23, 40], [0, 6, 12, 18, 24, 30, 36, 40], [0, 39, 40]])
def test_any_split_of_rows_gives_the_same_bits(isa: str, cuts: list[int]) -> None:
    p = problem(MANY_ROWS, 576, 130, 64)
    assert same_bits(run(p, isa, cuts=cuts, pool=native.thread_pool(3)), run(p, isa))


def mutants(p: Problem) -> dict[str, Problem]:
    q, scales, sums = p.rows
    w = p.weight
    u, swapped = w.u.copy(), w.scale.copy()
    u[0, 5] ^= 1
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    return {
        "sums flipped": replace(p, rows=(q, scales, -sums)),
        "one weight off by one": replace(p, weight=replace(w, u=u)),
        "two groups swapped": replace(p, weight=replace(w, scale=swapped)),
        "octets in the other order": replace(p, weight=replace(w, u=w.u.reshape(-1, 2, 4)[:, ::-1].reshape(w.u.shape))),
    }


@every_isa
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_mutants_are_caught(isa: str, rows: int) -> None:
    p = problem(rows, 1024, 64, 64)
    expected = reference(p)
    assert same_bits(run(p, isa), expected)
    for name, mutant in mutants(p).items():
        assert not same_bits(run(mutant, isa), expected), name


@every_isa
@every_group
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_packer(isa: str, group: int, dtype: Any) -> None:
    rng = np.random.default_rng(group)
    w = (rng.standard_normal((100, 384)) * rng.lognormal(0, 2, (100, 384))).astype(dtype)
    w[3], w[4, :64], w[5, ::3], w[6, :200] = 0, 0.5, -0.0, np.abs(w[6, :200])
    w[7] = w[7] * np.asarray(2.0**-12, dtype)
    packed, column = int4.pack(int4.quantize_weight(w.astype(np.float32), group))
    got, columns = np.full_like(packed, 7), np.full_like(column, 7)
    source = native.SOURCES[w.dtype.name]
    native.module().pack(w if source == "f32" else w.view(np.uint16), source, got.reshape(-1), columns, group=group, isa=isa)
    np.testing.assert_array_equal(columns, column)
    np.testing.assert_array_equal(got, packed)


@every_isa
def test_packer_takes_every_magnitude(isa: str) -> None:
    rng = np.random.default_rng(9)
    w = (rng.standard_normal((400, 64)) * 2.0 ** rng.integers(-148, 127, (400, 1))).astype(np.float32)
    w[0], w[1] = np.float32(3.4e38) * rng.choice([-1, 1], 64), np.float32(1e-44)
    packed, column = int4.pack(int4.quantize_weight(w, 32))
    got, columns = np.zeros_like(packed), np.zeros_like(column)
    native.module().pack(w, "f32", got.reshape(-1), columns, group=32, isa=isa)
    np.testing.assert_array_equal(columns, column)
    np.testing.assert_array_equal(got, packed)


def test_packer_names_what_it_refuses() -> None:
    w = np.zeros((70, 64), np.float32)
    w[66, 3] = np.nan
    packed, column = np.zeros(int4.packed_shape(70, 64, 32), np.uint8), np.zeros(128, np.float32)
    with pytest.raises(ModelFormatError, match="row 66"):
        native.pack_q4(w, packed, column, "layers.0.up")
    with pytest.raises(ValueError, match="group must be"):
        native.module().pack(w, "f32", packed.reshape(-1), column, group=48)
