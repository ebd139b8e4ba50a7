"""Static int8 activations: every ISA writes the rows of quant/schemes/static.py and counts those that fell back."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from native.harness import Data, isas, make_batch, quantized_parts, run_plan, runtime
from native_q8.test_epilogues import Array, plain
from taut import passes
from taut.engine.executors.native import NativeExecutor
from taut.passes import fuse_requantize
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.schemes import int8, static

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native core is not built")]
every_isa = pytest.mark.parametrize("isa", isas())


def quantize_plan(op: str, k: int, how: static.Calibrated | None) -> Plan:
    """One step that writes static rows, or (None) floats."""
    attrs = {} if how is None else {"group": 0, "scale": how.scale, "offset": how.offset}
    x, y = (
        Buffer("tokens", 0, 8 * int8.round_up(k, 16)),
        Buffer("tokens", 8 * int8.round_up(k, 16), 4 * int8.round_up(k, 16) + 64),
    )
    inputs, keys = (View("x", x, 0, 2 * k if op == "swiglu" else k),), ()
    if op == "swiglu":
        attrs |= {"act": "silu"}
    elif op != "quantize":
        attrs |= {"eps": 1e-5, "head_dim": 0, "store_out": how is None}
        keys = ("gain",)
    step = Step(op, inputs, (View("y", y, 0, k, "f32" if how is None else "q8"),), keys, attrs)
    return Plan((step,), (), {"tokens": y.offset + y.row_bytes, "rows": 0, "sequences": 0}, "int8")


def outlying(rows: int, k: int) -> Array:
    """Rows inside [-3, 5], at its ends and beyond; one of zeros and one that is not finite."""
    rng = np.random.default_rng(k)
    x = rng.uniform(-3, 5, (rows, k)).astype(np.float32)
    x[1::4, 0], x[2::8, -1], x[3::8, k // 2] = 5, 5.02, 5.2
    x[4], x[6] = 0, 1e4
    x[10, 0], x[14, 0] = np.nan, np.inf
    return x


@every_isa
@pytest.mark.parametrize("k", [1, 15, 64, 100, 576])
def test_static_rows_and_their_count(isa: str, k: int) -> None:
    x, how = outlying(37, k), static.calibrated(-3, 5)
    q, scales, sums, fallbacks = static.quantize_rows(x, how)
    assert 3 < fallbacks < 30
    store = WeightStore({}, {})
    executor = NativeExecutor(made := quantize_plan("quantize", k, how), store, runtime(isa, 2), None)
    batch, (step,) = make_batch([len(x)]), made.steps
    for runs in (1, 2, 3):
        executor.run(batch, 0, 0)
        executor.value(step.inputs[0], batch)[...] = x
        executor.run(batch)
        got_q, got_scales, got_sums = quantized_parts(executor.bytes_of(step.outputs[0], batch), k, 0)
        np.testing.assert_array_equal(got_q, q)
        np.testing.assert_array_equal(got_scales, scales)
        np.testing.assert_array_equal(got_sums, sums)
        assert [kinds["fallback"] for kinds in executor.counts().values()] == [runs * fallbacks]


@every_isa
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm", "swiglu"])
def test_fused_static_rows_are_those_of_the_step_behind(isa: str, op: str) -> None:
    k, tokens = 100, 21
    rng = np.random.default_rng(0)
    x = rng.standard_normal((tokens, 2 * k if op == "swiglu" else k)).astype(np.float32)
    gain = np.resize(rng.standard_normal(k).astype(np.float32), 128)
    data = Data((x,), (), WeightStore({"gain": PackedWeight("vector", (k,), gain)}, {}), make_batch([tokens]))
    (y,) = run_plan(quantize_plan(op, k, None), data, runtime(isa))
    most = float(np.median(np.abs(y).max(axis=1)))
    how = static.calibrated(-most, 1.2 * most)
    (fused,) = run_plan(quantize_plan(op, k, how), data, runtime(isa))
    want = static.quantize_rows(y, how)
    assert 0 < want[3] < tokens
    for got, expected in zip(quantized_parts(fused, k, 0), want[:3], strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_static_quantizer_in_groups_is_refused() -> None:
    made = quantize_plan("quantize", 128, static.calibrated(-1, 1))
    step = replace(made.steps[0], attrs={**made.steps[0].attrs, "group": 64})
    with pytest.raises(ValueError, match="one scale for the whole row"):
        NativeExecutor(replace(made, steps=(step,)), WeightStore({}, {}), runtime(isas()[0]), None)


def test_requantizing_linears_leave_static_quantizers_alone() -> None:
    graph = passes.optimize(plain(128, 128, "relu", True), passes.Options("int8", ("fuse_requantize",)))
    attrs = {"group": 0, "scale": 0.1, "offset": 0.0}
    nodes = [replace(n, attrs=MappingProxyType(attrs)) if n.op == "quantize" else n for n in graph.nodes]
    changed = graph.rebuilt(nodes)
    kept = fuse_requantize.run(changed, passes.Options("int8"))
    assert [node.op for node in kept.nodes] == [node.op for node in changed.nodes]
