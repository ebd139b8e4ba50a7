from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from taut.bench.work import Work, count, floor_s
from taut.engine.batch import Batch
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore

LIMITS = {"int8_tops": 2.0, "bf16_tflops": 1.0, "fp32_tflops": 0.5, "read_gb_s": 50.0}


def view(name: str, features: int, space: str = "tokens") -> View:
    return View(name, Buffer(space, 0, 64), 0, features)  # type: ignore[arg-type]


def batch(*lengths: int, context: tuple[int, ...] | None = None) -> Batch:
    """Sequences of these many new tokens; `context` is their length in the cache after the step."""
    ends = context or lengths
    starts = np.cumsum([0, *lengths]).astype(np.int32)
    positions = np.concatenate([np.arange(end - n, end) for n, end in zip(lengths, ends, strict=True)]).astype(np.int32)
    zeros = np.zeros(starts[-1], np.int32)
    return Batch(zeros, positions, starts, np.array(ends, np.int32), np.zeros((len(ends), 0), np.int32), starts[1:] - 1, zeros)


def decoder() -> tuple[Plan, WeightStore]:
    heads = {"heads": 4, "kv_heads": 2, "head_dim": 8}
    steps = (
        Step("linear_q8", (view("x", 32),), (view("q", 64),), ("w",)),
        Step("attention", (view("q", 32),), (view("a", 32),), (), heads),
        Step("linear_q8", (view("a", 32, "rows"),), (view("logits", 100, "rows"),), ("head",)),
        Step("rms_norm", (view("x", 32),), (view("y", 32),), ("gain",)),
    )
    weights = {
        "w": PackedWeight("q8", (64, 32), np.zeros(64 * 32, np.uint8), np.zeros(64, np.float32)),
        "head": PackedWeight("q8", (100, 32), np.zeros(128 * 32, np.uint8), np.zeros(128, np.float32)),
        "gain": PackedWeight("vector", (32,), np.zeros(64, np.float32)),
    }
    return Plan(steps, (view("logits", 100, "rows"),), {"tokens": 64, "rows": 64, "sequences": 0}, "int8"), WeightStore(
        weights, {}
    )


def test_prefill_and_decode_are_counted() -> None:
    plan, weights = decoder()
    prefill = count(plan, weights, batch(10, 6), 100.0)
    assert (prefill.int8_macs, prefill.f32_macs) == (16 * 32 * 64 + 2 * 32 * 100, 0)
    assert prefill.attention_macs == 2 * (55 + 21) * 32
    assert prefill.weight_bytes == (64 * 32 + 64 * 4) + (128 * 32 + 128 * 4)
    decode = count(plan, weights, batch(1, 1, context=(11, 7)), 100.0)
    assert decode.int8_macs == 2 * 32 * 64 + 2 * 32 * 100
    assert decode.attention_macs == 2 * (11 + 7) * 32
    assert decode.kv_bytes == 1800


def test_linears_count_at_the_rate_of_their_own_precision() -> None:
    plan, weights = decoder()
    first, *others = plan.steps
    mixed = replace(plan, steps=(replace(first, op="linear"), *others))
    work = count(mixed, weights, batch(10, 6), 0.0)
    assert (work.int8_macs, work.f32_macs) == (2 * 32 * 100, 16 * 32 * 64)


def test_full_attention_counts_all_pairs() -> None:
    heads = {"heads": 4, "kv_heads": 4, "head_dim": 8}
    plan = Plan((Step("attention_full", (view("q", 32),), (view("a", 32),), (), heads),), (), {}, "int8")
    assert count(plan, WeightStore({}, {}), batch(10, 6), 0.0).attention_macs == 2 * (100 + 36) * 32


def test_the_larger_floor_holds() -> None:
    assert floor_s(Work(10**12, 0, 0, 0, 0), LIMITS) == pytest.approx(1.0)
    assert floor_s(Work(0, 10**12, 0, 0, 0), LIMITS) == pytest.approx(4.0)
    assert floor_s(Work(0, 0, 10**12, 0, 0), LIMITS) == pytest.approx(2.0)
    assert floor_s(Work(10**12, 0, 10**12, 0, 0), LIMITS) == pytest.approx(3.0)
    assert floor_s(Work(10**9, 0, 0, 45 * 10**9, 5 * 10**9), LIMITS) == pytest.approx(1.0)
    assert floor_s(Work(10**12, 10**12, 0, 0, 0), LIMITS) == pytest.approx(5.0), "a plan of two precisions pays for both"
    assert floor_s(Work(0, 0, 0, 0, 0, 10**12), LIMITS) == pytest.approx(2.0), "linears in bf16, at its rate"
    # Without bf16 instructions attention cannot be faster than fp32.
    assert floor_s(Work(0, 0, 10**12, 0, 0), {**LIMITS, "bf16_tflops": None}) == pytest.approx(4.0)


def test_work_adds_up_field_by_field() -> None:
    """A prefill in several steps is their sum, whatever it multiplies in."""
    assert Work(1, 2, 3, 4, 5, 6) + Work(10, 20, 30, 40, 50, 60) == Work(11, 22, 33, 44, 55, 66)
