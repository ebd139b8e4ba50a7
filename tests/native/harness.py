"""Runs one kernel case as a one-step plan on a chosen ISA and thread count, and its numpy reference.

Every operand lies in a buffer with foreign columns around it, filled with NaN, so that a kernel that reads or writes outside its own
columns is caught.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cases.kernels import Case
from taut import ops
from taut.engine.batch import Batch
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import KVPool
from taut.engine.runtime import Runtime
from taut.kernels import native
from taut.plan.packing import FLOATS, arranged, group_of, layout, pack_floats, unpack_floats
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.schemes import int8

Floats = NDArray[np.float32]
SPACE = {"select": "rows", "pool": "sequences"}
LEFT, RIGHT = 5, 3  # foreign columns around a float operand


@functools.cache
def runtime(isa: str, threads: int = 1) -> Runtime:
    return Runtime(threads, isa)


def isas() -> list[str]:
    return native.runnable_isas() if native.is_built() else []


@dataclass(frozen=True)
class Data:
    """A case's values: inputs (tokens, features), weights as the reference takes them, and the batch."""

    inputs: tuple[Floats, ...]
    weights: tuple[Any, ...]
    store: WeightStore
    batch: Batch


def make_batch(lengths: Sequence[int], *, vocab: int = 100, seed: int = 1) -> Batch:
    """Sequences of these lengths from position 0, without a cache; the last row of each is wanted."""
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    total = int(starts[-1])
    positions = np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)
    tables = np.zeros((len(lengths), 0), np.int32)
    ids = rng.integers(0, vocab, total).astype(np.int32)
    return Batch(ids, positions, starts, np.array(lengths, np.int32), tables, starts[1:] - 1, np.zeros(total, np.int32))


def make_data(case: Case, seed: int = 0) -> Data:
    rng = np.random.default_rng(seed)
    lengths = [case.tokens] if case.tokens < 8 else [case.tokens - 6, 1, 5]
    inputs = tuple(rng.standard_normal((case.tokens, features)).astype(np.float32) * 2 for features in case.inputs)
    packed, logical = {}, []
    for index, (kind, shape) in enumerate(case.weights):
        w = rng.standard_normal(shape).astype(np.float32)
        packed[f"w{index}"], value = pack(kind, w)
        logical.append(value)
    return Data(inputs, tuple(logical), WeightStore(packed, {}), make_batch(lengths))


def pack(kind: str, w: Floats) -> tuple[PackedWeight, Any]:
    """(packed, what the reference takes)."""
    if kind.startswith("q8") or kind == "i8":
        weight = int8.quantize_groups(w, group_of(kind))
        data, scale = arranged(kind, weight)
        return PackedWeight(kind, w.shape, data, scale), (weight.q, weight.scale)  # type: ignore[arg-type]
    if kind in FLOATS:
        panels = np.empty(layout(kind, w.shape).shape, FLOATS[kind])
        pack_floats(w, panels)
        return PackedWeight(kind, w.shape, panels), unpack_floats(panels, *w.shape)  # type: ignore[arg-type]
    if kind == "vector":
        padded = np.full(int8.round_up(len(w), 64), np.float32(np.nan))
        padded[: len(w)] = w
        return PackedWeight("vector", w.shape, padded), w
    return PackedWeight("table", w.shape, w), w


def make_plan(case: Case) -> Plan:
    offsets = {"tokens": 0, "rows": 0, "sequences": 0}

    def place(name: str, space: str, features: int, dtype: str) -> View:
        if dtype == "q8":
            size, column = int8.quantized_row_bytes(features, case.attrs["group"]), 0
        else:
            size, column = int8.round_up(4 * (LEFT + features + RIGHT), 64), LEFT
        buffer = Buffer(space, offsets[space], size)  # type: ignore[arg-type]
        offsets[space] += size
        return View(name, buffer, column, features, dtype)  # type: ignore[arg-type]

    inputs = tuple(place(f"x{index}", "tokens", features, "f32") for index, features in enumerate(case.inputs))
    space = SPACE.get(case.op, "tokens")
    outputs = tuple(place(f"y{index}", space, features, dtype) for index, (features, dtype) in enumerate(case.outputs))
    step = Step(case.op, inputs, outputs, tuple(f"w{index}" for index in range(len(case.weights))), dict(case.attrs))
    return Plan((step,), tuple(view for view in outputs if view.dtype == "f32"), dict(offsets), "fp32")


def run_plan(plan: Plan, data: Data, machine: Runtime, kv: KVPool | None = None) -> list[NDArray[Any]]:
    """Each output of the plan's last step: float32 (units, features), or the raw rows of a quantized one."""
    executor = NativeExecutor(plan, data.store, machine, kv)
    executor.run(data.batch, 0, 0)
    views = [view for step in plan.steps for view in (*step.inputs, *step.outputs)]
    for view in views:
        executor.bytes_of(view, data.batch)[...] = 0xFF  # NaN
    for view, value in zip(plan.steps[0].inputs, data.inputs, strict=True):
        executor.value(view, data.batch)[...] = value
    executor.run(data.batch)
    for view in views:
        if view.dtype == "f32":
            raw = executor.bytes_of(view, data.batch)
            assert (raw[:, : 4 * view.column] == 0xFF).all(), f"{view.name}: wrote left of its columns"
            assert (raw[:, 4 * (view.column + view.features) :] == 0xFF).all(), f"{view.name}: wrote right of its columns"
    outputs = plan.steps[-1].outputs
    return [
        executor.value(view, data.batch).copy() if view.dtype == "f32" else executor.bytes_of(view, data.batch).copy()
        for view in outputs
    ]


def run_case(case: Case, data: Data, isa: str, threads: int = 1) -> list[NDArray[Any]]:
    return run_plan(make_plan(case), data, runtime(isa, threads))


def reference(case: Case, data: Data) -> list[Any]:
    """The unfused numpy reference: outputs in the step's order; a quantized one as its triple (q, scales, sums)."""
    b, attrs = data.batch, dict(case.attrs)
    context = ops.Context(b.ids, b.positions, b.types, b.starts, b.context, b.tables, b.rows, None)
    inputs, group = list(data.inputs), attrs.get("group", -1)
    outputs = []
    if attrs.get("add"):
        inputs = [inputs[0] + inputs[1]]
        if attrs["store_sum"]:
            outputs.append(inputs[0])
    (y,) = ops.find(case.op).run(inputs, data.weights, attrs, context)
    if case.op == "linear":
        y = y.astype(np.float32)
    if group >= 0 and case.op != "quantize":
        outputs += [y] * bool(attrs.get("store_out", False))
        how = {"group": group, **{key: attrs[key] for key in ("scale", "offset") if key in attrs}}
        return [*outputs, *ops.find("quantize").run([y], (), how, context)]
    return [*outputs, y]


def quantized_parts(rows: NDArray[np.uint8], k: int, group: int) -> tuple[Any, Any, Any]:
    """(q, scales, sums) of raw quantized rows."""
    layout = int8.row_layout(k, group)
    q = rows[:, : layout.values_bytes].copy().view(np.int8)
    scales = rows[:, layout.scales_offset : layout.sums_offset].copy().view(np.float32)
    sums = rows[:, layout.sums_offset : layout.sums_offset + 4 * layout.num_pieces].copy().view(np.int32)
    return q, scales, sums
