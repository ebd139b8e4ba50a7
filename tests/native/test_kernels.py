"""Every kernel against its numpy reference, on every ISA that runs here; ISAs, thread counts and row counts bit for bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from cases.kernels import CASES, LINEARS, Case
from native.harness import (
    LEFT,
    RIGHT,
    Data,
    isas,
    make_batch,
    make_data,
    pack,
    quantized_parts,
    reference,
    run_case,
    run_plan,
    runtime,
)
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.schemes import int4, int8

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]
BEST = isas()[-1] if isas() else ""


def ids(case: Case) -> str:
    return case.name


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude."""
    return float(np.abs(actual.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("case", CASES, ids=ids)
@pytest.mark.parametrize("isa", isas())
def test_matches_reference(case: Case, isa: str) -> None:
    data = make_data(case)
    for (features, dtype), actual, expected in zip(case.outputs, run_case(case, data, isa), reference(case, data), strict=True):
        if dtype == "f32":
            assert error(actual, expected) <= case.tolerance
            continue
        q, scales, sums = quantized_parts(actual, features, case.attrs["group"])
        if case.op == "quantize":
            assert [
                same_bits(q.astype(np.int8), expected[0]),
                same_bits(scales, expected[1]),
                same_bits(sums, expected[2]),
            ] == [True] * 3
        else:  # the float before rounding differs in the last bits: a value on the edge may fall either way
            assert np.abs(q - expected[0].astype(np.int16)).max() <= 1
            assert np.mean(q != expected[0]) < 0.01
            np.testing.assert_allclose(scales, expected[1], rtol=1e-5)


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_every_isa_gives_the_same_bits(case: Case) -> None:
    data = make_data(case)
    plain = run_case(case, data, "scalar")
    for isa in isas()[1:]:
        for (features, dtype), a, b in zip(case.outputs, plain, run_case(case, data, isa), strict=True):
            if dtype == "f32":
                assert same_bits(a, b)
            else:
                group = case.attrs["group"]
                mine = quantized_parts(b, features, group)
                for x, y in zip(quantized_parts(a, features, group), mine, strict=True):
                    assert np.array_equal(x, y)


@pytest.mark.parametrize("case", [case for case in CASES if case.op not in ("attention_full", "pool", "select")], ids=ids)
def test_a_row_does_not_depend_on_its_companions(case: Case) -> None:
    data = make_data(case)
    together = run_case(case, data, BEST, threads=2)
    for token in (0, case.tokens - 1):
        alone = Data(tuple(x[token : token + 1] for x in data.inputs), data.weights, data.store, one_token(data, token))
        for a, b in zip(together, run_case(case, alone, BEST), strict=True):
            assert same_bits(a[token : token + 1, : b.shape[1]], b) or (
                a.dtype == np.uint8 and same_visible(case, a[token], b[0])
            )


def same_visible(case: Case, a: np.ndarray, b: np.ndarray) -> bool:
    """Quantized rows agree but for their padding, which nobody reads."""
    k, group = case.outputs[-1][0], case.attrs["group"]
    parts = zip(quantized_parts(a[None], k, group), quantized_parts(b[None], k, group), strict=True)
    return all(same_bits(x, y) for x, y in parts)


def one_token(data: Data, token: int):
    batch = make_batch([1])
    own = slice(token, token + 1)
    return dataclasses.replace(batch, ids=data.batch.ids[own], positions=data.batch.positions[own])


def test_attention_full_sequences_do_not_mix() -> None:
    case = next(case for case in CASES if case.op == "attention_full")
    data = make_data(case)
    (together,) = run_case(case, data, BEST, threads=2)
    for s, begin in enumerate(data.batch.starts[:-1]):
        own = slice(int(begin), int(data.batch.starts[s + 1]))
        alone = Data(tuple(x[own] for x in data.inputs), (), data.store, make_batch([own.stop - own.start]))
        (single,) = run_case(dataclasses.replace(case, tokens=own.stop - own.start), alone, BEST)
        assert same_bits(together[own], single)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.op in ("linear", "rms_norm", "layer_norm", "quantize", "normalize")], ids=ids
)
def test_a_bad_row_spoils_itself_alone(case: Case, bad: float) -> None:
    data = make_data(case)
    clean = run_case(case, data, BEST)
    inputs = tuple(x.copy() for x in data.inputs)
    inputs[0][case.tokens // 2, 0] = bad
    spoiled = run_case(case, dataclasses.replace(data, inputs=inputs), BEST)
    others = np.arange(case.tokens) != case.tokens // 2
    for (features, dtype), a, b in zip(case.outputs, clean, spoiled, strict=True):
        if dtype == "f32":
            assert same_bits(a[others], b[others])
            assert not np.isfinite(b[~others]).all() or case.attrs.get("act") in ("relu", "tanh")
        else:
            q, scales, _ = quantized_parts(b, features, case.attrs["group"])
            assert np.isnan(scales[~others]).any()
            assert not q[~others, : case.attrs["group"] or features].any()


def test_the_bound_bites() -> None:
    """A mutant that forgets one input of K must not pass."""
    for case in LINEARS:
        if case.inputs[0] < 3:
            continue
        data = make_data(case)
        mutant = dataclasses.replace(data, inputs=(data.inputs[0] * (np.arange(case.inputs[0]) != case.inputs[0] - 1),))
        assert error(run_case(case, data, BEST)[0], reference(case, mutant)[0]) > 10 * case.tolerance


def test_activations_at_the_edges() -> None:
    """Far tails, zeros, infinities and NaN through every activation."""
    x = np.array(
        [-np.inf, -3e38, -1e4, -90, -20, -1e-30, -0.0, 0.0, 1e-30, 1e-3, 20, 90, 1e4, 3e38, np.inf, np.nan], np.float32
    )
    want = {
        "relu": lambda v: np.where(np.isnan(v), v, np.maximum(v, 0)),
        "tanh": np.tanh,
        "silu": lambda v: v / (1 + np.exp(-v)),
    }
    for op, function in want.items():
        case = Case(op, (16,), ((16, "f32"),), (), {}, tokens=1)
        data = dataclasses.replace(make_data(case), inputs=(x[None],))
        with np.errstate(all="ignore"):
            expected = function(x.astype(np.float64))
        for isa in isas():
            (actual,) = run_case(case, data, isa)
            np.testing.assert_allclose(actual[0], expected, rtol=1e-6, atol=1e-37)


def quantized_plan(op: str, k: int, n: int, group: int, bias: bool) -> Plan:
    x = Buffer("tokens", 0, int8.round_up(4 * k, 64))
    q = Buffer("tokens", x.row_bytes, int8.quantized_row_bytes(k, group))
    y = Buffer("tokens", q.offset + q.row_bytes, int8.round_up(4 * (n + LEFT + RIGHT), 64))
    vx, vq, vy = View("x", x, 0, k), View("q", q, 0, k, "q8"), View("y", y, LEFT, n)
    quantize = Step("quantize", (vx,), (vq,), (), {"group": group})
    linear = Step(op, (vq,), (vy,), ("w", "b" if bias else ""), {"group": group, "act": ""})
    return Plan((quantize, linear), (vy,), {"tokens": y.offset + y.row_bytes, "rows": 0, "sequences": 0}, "int8")


@pytest.mark.parametrize(
    ("k", "n", "group"), [(128, 70, 64), (576, 192, 64), (256, 64, 128), (96, 65, 32), (100, 130, 0), (37, 10, 0)]
)
@pytest.mark.parametrize("tokens", [1, 3, 25])
@pytest.mark.parametrize("isa", isas())
def test_quantize_and_linear_q8_are_exact(k: int, n: int, group: int, tokens: int, isa: str) -> None:
    rng = np.random.default_rng(k + tokens)
    w, b = rng.standard_normal((n, k)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    x = (rng.standard_normal((tokens, k)) * 3).astype(np.float32)
    q, scale = int8.quantize_weight(w)
    packed, scales = int8.pack(q, scale)
    store = WeightStore({"w": PackedWeight("q8", (n, k), packed, scales), "b": pack("vector", b)[0]}, {})
    rows, cut = int8.quantize_rows(x, group), int8.pieces(k, group)
    for bias in (b, None):
        plan = quantized_plan("linear_q8", k, n, group, bias is not None)
        (y,) = run_plan(plan, Data((x,), (), store, make_batch([tokens])), runtime(isa, 2))
        assert same_bits(y, int8.linear_reference(rows, cut, packed, scales, n, bias))


@pytest.mark.parametrize(("k", "n", "group"), [(128, 70, 64), (576, 192, 32), (256, 65, 128)])
@pytest.mark.parametrize("tokens", [1, 3, 25])
@pytest.mark.parametrize("isa", isas())
def test_quantize_and_linear_q4_are_exact(k: int, n: int, group: int, tokens: int, isa: str) -> None:
    rng = np.random.default_rng(k + tokens)
    w, b = rng.standard_normal((n, k)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    x = (rng.standard_normal((tokens, k)) * 3).astype(np.float32)
    weight = int4.quantize_weight(w, group)
    kind = f"q4g{group}"
    store = WeightStore({"w": PackedWeight(kind, (n, k), *int4.pack(weight)), "b": pack("vector", b)[0]}, {})  # type: ignore[arg-type]
    for bias in (b, None):
        plan = quantized_plan("linear_q4", k, n, group, bias is not None)
        (y,) = run_plan(plan, Data((x,), (), store, make_batch([tokens])), runtime(isa, 2))
        assert same_bits(y, int4.linear_reference(int8.quantize_rows(x, group), weight, bias))
