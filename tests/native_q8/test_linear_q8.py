"""The int8 linear: every ISA gives the bits of its numpy definition, whatever the rows, tails, groups and splits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from native_q8.harness import ISAS, Problem, from_floats, problem, reference, run, same_bits
from taut.kernels import native
from taut.ops import activation as activations
from taut.quant.schemes import int8

pytestmark = [pytest.mark.native, pytest.mark.skipif(not ISAS, reason="the native core is not built")]
every_isa = pytest.mark.parametrize("isa", ISAS)
MANY_ROWS = 40


@every_isa
@pytest.mark.parametrize(
    ("k", "group"), [(576, 32), (576, 64), (576, 0), (384, 128), (1024, 128), (1280, 0), (4160, 0), (100, 0), (8, 0), (30, 0)]
)
def test_every_row_count(isa: str, k: int, group: int) -> None:
    p = problem(MANY_ROWS, k, 130, group, bias=k % 64 == 0)
    expected = reference(p)
    for rows in range(1, MANY_ROWS + 1):
        assert same_bits(run(p.first_rows(rows), isa), expected[:rows]), rows


@every_isa
@pytest.mark.parametrize("n", [1, 15, 16, 17, 63, 64, 65, 127, 192])
def test_columns_beyond_n_are_not_written(isa: str, n: int) -> None:
    p = problem(9, 256, n, 128, bias=True)
    assert same_bits(run(p, isa), reference(p))


@every_isa
@pytest.mark.parametrize("rows", [100, 131, 193])
def test_many_rows(isa: str, rows: int) -> None:
    for group in (64, 0):
        p = problem(rows, 576, 70, group)
        assert same_bits(run(p, isa), reference(p))


@every_isa
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_largest_values_do_not_overflow(isa: str, rows: int) -> None:
    rng = np.random.default_rng(1)
    for signs in (lambda size: np.ones(size), lambda size: rng.choice([-1.0, 1.0], size)):
        x, w = signs((rows, 4096)).astype(np.float32), signs((65, 4096)).astype(np.float32)
        for group in (128, 0):
            p = from_floats(x, w, group)
            assert np.abs(p.q).min() == 127
            assert same_bits(run(p, isa), reference(p))


@every_isa
def test_zero_rows_and_rows_that_are_not_finite_stay_alone(isa: str) -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((12, 256)).astype(np.float32), rng.standard_normal((65, 256)).astype(np.float32)
    clean = run(from_floats(x, w, 64), isa)
    x[3], x[5, 7], x[6, 200] = 0, np.nan, np.inf
    y = run(from_floats(x, w, 64), isa)
    assert same_bits(y, reference(from_floats(x, w, 64)))
    assert not y[3].any()
    assert np.isnan(y[[5, 6]]).all()
    others = [0, 1, 2, 4, 7, 8, 9, 10, 11]
    assert same_bits(y[others], clean[others])


@every_isa
@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 40], [0, 17, 17, 23, 40], [0, 6, 12, 18, 24, 30, 36, 40], [0, 39, 40]])
def test_any_split_of_rows_gives_the_same_bits(isa: str, cuts: list[int]) -> None:
    p = problem(MANY_ROWS, 576, 130, 64)
    assert same_bits(run(p, isa, cuts=cuts), run(p, isa))


@every_isa
def test_threads_give_the_same_bits(isa: str) -> None:
    p = problem(MANY_ROWS, 512, 300, 128)
    assert same_bits(run(p, isa, cuts=[0, 13, 40], pool=native.thread_pool(3)), run(p, isa))


@every_isa
def test_rows_outside_the_range_are_not_written(isa: str) -> None:
    y = run(problem(12, 128, 64, 128), isa, cuts=[3, 8])
    assert np.isnan(y[:3]).all()
    assert np.isnan(y[8:]).all()
    assert not np.isnan(y[3:8]).any()


@every_isa
@pytest.mark.parametrize(("code", "name"), [(1, "gelu"), (2, "gelu_tanh"), (3, "silu"), (4, "relu"), (5, "tanh")])
def test_activations(isa: str, code: int, name: str) -> None:
    p = problem(5, 128, 70, 128, bias=True)
    exact = (
        getattr(activations, name)(reference(p).astype(np.float64))
        if name != "tanh"
        else np.tanh(reference(p), dtype=np.float64)
    )
    np.testing.assert_allclose(run(p, isa, activation=code), exact, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("code", range(6))
def test_isas_agree_on_activations(code: int) -> None:
    p = problem(13, 320, 70, 64, bias=True)
    first = run(p, ISAS[0], activation=code)
    assert all(same_bits(run(p, isa, activation=code), first) for isa in ISAS[1:])


def mutants(p: Problem) -> dict[str, Problem]:
    begin, segment = list(p.cut.begin), list(p.cut.segment)
    moved = replace(p.cut, segment=(segment[0], segment[1] - 1, *segment[2:]))
    late = replace(p.cut, begin=(*begin[:2], begin[2] - 4, *begin[3:]))
    one = p.packed.copy()
    one[0, 0, 0, 0] ^= 1
    return {
        "correction flipped": replace(p, sums=-p.sums),
        "correction dropped": replace(p, sums=np.zeros_like(p.sums)),
        "one piece in the next segment": replace(p, cut=moved),
        "one piece too short": replace(p, cut=late),
        "one weight off by one": replace(p, packed=one),
    }


@every_isa
@pytest.mark.parametrize("rows", [7, 40])
def test_mutants_are_caught(isa: str, rows: int) -> None:
    p = problem(rows, 1024, 64, 64)
    expected = reference(p)
    assert same_bits(run(p, isa), expected)
    for name, mutant in mutants(p).items():
        if name.startswith("correction") and (isa == "avx2" or (isa == "amx" and rows >= 16)):
            continue  # the weights there are signed: no correction is read
        assert not same_bits(run(mutant, isa), expected), name


@every_isa
@pytest.mark.parametrize("rows", [5, 40])
def test_every_pair_of_weights_with_the_largest_activations(isa: str, rows: int) -> None:
    """Sums of two products reach 2 * 127 * 127, where an instruction of 16 bits saturates: every pair that is near its bound."""
    near = np.array([0, 1, 2, 62, 63, 64, 65, 66, 126, 127])
    pairs = np.array([(a, b) for a in near for b in near])
    quads = np.concatenate([np.c_[pairs, pairs[::-1]], np.c_[-pairs, pairs[::-1]], np.c_[pairs * (1, -1), -pairs[::-1]]])
    w = np.resize(quads, (70, 4 * len(quads))).astype(np.int8)
    w[:, ::2] = np.roll(w, 7, axis=0)[:, ::2]
    q = np.full((rows, w.shape[1]), 127, np.int8)
    q[1::2] = -127
    q[2::4, ::3] = -127
    cut = int8.pieces(w.shape[1], 0)
    sums = np.add.reduceat(q, cut.begin[:-1], axis=1, dtype=np.int32) * -128
    packed, scale = int8.pack(w, np.ones(len(w), np.float32))
    p = Problem(q, np.ones((rows, len(cut.begin) - 1), np.float32), sums.astype(np.int32), cut, packed, scale, len(w), None)
    np.testing.assert_allclose(reference(p), q.astype(np.int64) @ w.T.astype(np.int64), rtol=1e-6)
    assert same_bits(run(p, isa), reference(p))


def test_wrong_sizes_are_refused() -> None:
    p = problem(3, 128, 64, 128)
    with pytest.raises(ValueError, match="smaller"):
        run(replace(p, w_scale=p.w_scale[:32]), ISAS[0])
    with pytest.raises(ValueError, match="ascending"):
        run(p, ISAS[0], cuts=[0, 4])
    assert int8.default_group(128) == 128
