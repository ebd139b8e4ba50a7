"""The native executor: a Plan lowered to one C++ program, run in one call per step with the GIL released.

Knows how each step's attributes map to the native core's; not what the arithmetic is (csrc/kernels/).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.engine.batch import Batch
from taut.engine.kv_cache import KVPool
from taut.engine.kv_slots import KINDS, Slot
from taut.engine.runtime import Runtime
from taut.errors import RequestError
from taut.kernels import native
from taut.plan.packing import group_of
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import LINEARS, PackedWeight, WeightStore
from taut.quant.schemes import int8

Floats = NDArray[np.float32]
SPACES = ("tokens", "rows", "sequences")
ACTIVATIONS = ("", "gelu", "gelu_tanh", "silu", "relu", "tanh")
INDICES = ("ids", "positions", "types")
TABLES = ("table", "f32", "q8", "f16", "bf16", "i8")
STORES = ("f32", "f16", "bf16", "i8")
QUANTIZED = ("linear_q8", "linear_q4", "qkv_attention")  # ops on quantized rows and a quantized weight
POOLS = ("mean", "cls", "last", "max")
HUGE_PAGE_BYTES = 2 << 20
TRIM_RUNS, TRIM_RATIO = 256, 4
F32_UNITS = (128, 64, 32, 4)


class StepAborted(Exception):
    """The abort flag was set before the step ended; its outputs are undefined, its cache writes may be partial."""


class NativeExecutor:
    """Runs one plan. Not for two threads at once: the arena is its own."""

    def __init__(self, plan: Plan, store: WeightStore, runtime: Runtime, kv: KVPool | None) -> None:
        self._plan, self._store, self._kv = plan, store, kv  # kept: the program holds their addresses
        self._runtime = runtime
        self._space_bytes = [int(plan.space_bytes.get(space, 0)) for space in SPACES]
        self._program = native.program(runtime.isa, runtime.pool, self._space_bytes, _kv_geometry(kv))
        for step in plan.steps:
            lowering = _Lowering(step, store)
            inputs, outputs = [_operand(view) for view in step.inputs], [_operand(view) for view in step.outputs]
            self._program.add(
                step.op, inputs, outputs, lowering.weights(), lowering.ints(), lowering.floats(), lowering.lists()
            )
        self._memory: native.Memory | None = None
        self._touched_bytes = self._needed_bytes = self._num_runs = 0  # committed; most that a run of this period took
        self._arena: NDArray[np.uint8] = np.empty(0, np.uint8)

    def run(
        self, batch: Batch, first_step: int = 0, last_step: int | None = None, abort: NDArray[np.int32] | None = None
    ) -> list[Floats]:
        """Steps [first_step, last_step) of the plan; its outputs, float32 (units of their space, features), valid until the next run.

        Another thread may set `abort` (int32, one entry) to stop early: StepAborted. RequestError for a batch that the plan cannot run.
        """
        self._runtime.adapt()
        counts = (batch.num_tokens, batch.num_rows, batch.num_sequences)
        self._reserve(sum(count * size for count, size in zip(counts, self._space_bytes, strict=True)))
        last = len(self._plan.steps) if last_step is None else last_step
        try:
            done = self._program.run(_arrays(batch), self._arena, first_step, last, abort)
        except ValueError as error:
            raise RequestError(str(error)) from None
        if not done:
            raise StepAborted
        return [self._view(view, counts) for view in self._plan.outputs]

    def value(self, view: View, batch: Batch) -> Floats:
        """A float view of the plan after `run(batch)`, when no later step took its place (calibration, tests)."""
        return self._view(view, (batch.num_tokens, batch.num_rows, batch.num_sequences))

    def bytes_of(self, view: View, batch: Batch) -> NDArray[np.uint8]:
        """The raw rows of a view's buffer, (units, row_bytes)."""
        counts = (batch.num_tokens, batch.num_rows, batch.num_sequences)
        offset, count = self._base(view.buffer, counts), counts[SPACES.index(view.buffer.space)]
        raw: NDArray[np.uint8] = np.ndarray((count, view.buffer.row_bytes), np.uint8, self._arena, offset)
        return raw

    def counts(self) -> dict[str, dict[str, int]]:
        """What the guards have counted since the last reset: of each step, named by what it was fused from, its kinds (native.COUNTERS)
        above zero."""
        kinds = native.counters()
        found = {}
        for step, numbers in zip(self._plan.steps, self._program.counts(), strict=True):
            if any(numbers):
                found["+".join(step.origin)] = {kind: count for kind, count in zip(kinds, numbers, strict=True) if count}
        return found

    def totals(self) -> dict[str, int]:
        """The same of all steps together; cheap enough for every run."""
        return {kind: count for kind, count in zip(native.counters(), self._program.totals(), strict=True) if count}

    def reset_counts(self) -> None:
        self._program.reset_counts()

    @property
    def arena_bytes(self) -> int:
        """Bytes reserved for activations."""
        return len(self._arena)

    def trim(self) -> None:
        """Give the arena's memory back to the system; the next run commits what it needs again."""
        self._keep(0)
        self._needed_bytes = 0

    def _reserve(self, size: int) -> None:
        """Room for a run of `size` bytes. After a peak, when TRIM_RUNS runs needed much less, the rest goes back to the system."""
        if size > len(self._arena):
            self._memory = native.memory(int8.round_up(size, HUGE_PAGE_BYTES))
            self._arena = self._memory.array()
            self._touched_bytes = 0
        self._touched_bytes, self._needed_bytes = max(self._touched_bytes, size), max(self._needed_bytes, size)
        self._num_runs += 1
        if self._num_runs % TRIM_RUNS == 0:
            if self._touched_bytes > TRIM_RATIO * self._needed_bytes:
                self._keep(self._needed_bytes)
            self._needed_bytes = size

    def _keep(self, size: int) -> None:
        """Only the arena's first `size` bytes stay committed, in whole huge pages."""
        begin = int8.round_up(size, HUGE_PAGE_BYTES)
        if self._memory is not None and begin < self._touched_bytes:
            self._memory.discard(begin, len(self._arena) - begin)
            self._touched_bytes = begin

    def _base(self, buffer: Buffer, counts: tuple[int, ...]) -> int:
        index = SPACES.index(buffer.space)
        before = sum(count * size for count, size in zip(counts[:index], self._space_bytes[:index], strict=True))
        return before + buffer.offset * counts[index]

    def _view(self, view: View, counts: tuple[int, ...]) -> Floats:
        offset = self._base(view.buffer, counts) + 4 * view.column
        shape = (counts[SPACES.index(view.buffer.space)], view.features)
        if shape[0] == 0:
            return np.empty(shape, np.float32)
        values: Floats = np.ndarray(shape, np.float32, self._arena, offset, (view.buffer.row_bytes, 4))
        return values


class _Lowering:
    """One step's attributes as the native core names them."""

    def __init__(self, step: Step, store: WeightStore) -> None:
        self._step = step
        self._weights: list[PackedWeight | None] = [store[key] if key else None for key in step.weights]

    def weights(self) -> list[int]:
        """Addresses: the weights in order, then the scales of a quantized one (a linear: weight, bias, scales)."""
        addresses = [_address(weight.data) if weight else 0 for weight in self._weights]
        first = self._weights[0] if self._weights else None
        if first is not None and first.scale is not None:
            addresses += [0] * ((2 if self._step.op in LINEARS else 1) - len(addresses))
            addresses.append(_address(first.scale))
        return addresses

    def ints(self) -> dict[str, int]:
        attrs, op = self._step.attrs, self._step.op
        named = {key: int(value) for key, value in attrs.items() if isinstance(value, (bool, int))}
        if "act" in attrs or op in ("linear", *QUANTIZED, "swiglu"):
            named["activation"] = ACTIVATIONS.index(str(attrs.get("act", "")))
        if op in QUANTIZED:
            named = {"add": 0, "gated": 0, "out_group": 0, "weight_group": 0, **named}
            if group := named["out_group"]:
                named["out_scales_offset"] = int8.row_layout(self._step.outputs[0].features, group).scales_offset
        if op in ("linear", "attention", "attention_full", "qkv_attention"):
            named.setdefault("bf16", 0)
            named.setdefault("blocks", 0)
        if op == "linear":
            named["store"] = STORES.index(self._first_weight().kind)
        if op in ("rms_norm", "layer_norm"):
            defaults = {"head_dim": 0, "add": 0, "store_sum": 0, "store_out": 1}
            named = {**defaults, **named}
        if op in ("rms_norm", "layer_norm", "swiglu"):
            named["quantized"] = int(self._group() is not None)
        if op == "embed":
            table = self._first_weight()
            named |= {"index": INDICES.index(str(attrs["index"])), "offset": int(attrs.get("offset", 0))}
            group = group_of(table.kind)
            named |= {"table": TABLES.index(table.kind.partition("g")[0]), "table_group": group, "entries": table.shape[0]}
        if op in ("rope", "rope_cache"):
            named["entries"] = len(self._first_weight().data)
        if op == "pool":
            named["mode"] = POOLS.index(str(attrs["mode"]))
        if (k := self._quantized_features()) is not None:
            named["scales_offset"] = int8.row_layout(k, self._group() or 0).scales_offset
        return named

    def floats(self) -> dict[str, float]:
        return {key: float(value) for key, value in self._step.attrs.items() if isinstance(value, (int, float))}

    def lists(self) -> dict[str, list[int]]:
        if self._step.op == "linear":
            return {"segment": f32_segments(self._step.inputs[0].features)}
        k = self._quantized_features()
        if k is None:
            return {}
        cut = int8.pieces(k, self._group() or 0)
        groups = list(range(cut.count)) if cut.group else [0] * cut.count
        return {"piece_begin": list(cut.begin), "piece_segment": list(cut.segment), "piece_group": groups}

    def _first_weight(self) -> PackedWeight:
        weight = self._weights[0]
        assert weight is not None
        return weight

    def _group(self) -> int | None:
        """Scale group of the step's quantized value, 0 per token; None when it has none."""
        group = int(self._step.attrs.get("group", -1))
        return group if group >= 0 else None

    def _quantized_features(self) -> int | None:
        views = self._step.inputs if self._step.op in QUANTIZED else self._step.outputs
        return next((view.features for view in views if view.dtype == "q8"), None)


def f32_segments(k: int) -> list[int]:
    """Where the four canonical segments of a float linear begin, and k: as equal as whole units allow, the first ones larger. All begin
    at an even input, for bf16 weights come in pairs of inputs; so where k is no multiple of a unit, the last pair may be a single one."""
    unit = next((unit for unit in F32_UNITS if k % unit == 0), 2)
    whole, extra = divmod(-(-k // unit), 4)
    bounds = [0]
    for index in range(4):
        bounds.append(min(bounds[-1] + unit * (whole + (index < extra)), k))
    return bounds


def _operand(view: View) -> native.Operand:
    buffer = view.buffer
    return SPACES.index(buffer.space), buffer.offset, buffer.row_bytes, 4 * view.column, view.features


def _address(array: NDArray[Any]) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def _arrays(batch: Batch) -> list[NDArray[np.int32]]:
    fields = (batch.ids, batch.positions, batch.starts, batch.context, batch.tables, batch.rows, batch.types)
    return [np.ascontiguousarray(field, dtype=np.int32) for field in fields]


def _kv_geometry(kv: KVPool | None) -> Mapping[str, int]:
    if kv is None:
        return {}
    layout = kv.layout
    keys, values = layout.slots
    return {
        "address": kv.address,
        "num_blocks": kv.num_blocks,
        "block_bytes": layout.block_bytes,
        "layers": layout.layers,
        "kv_heads": layout.kv_heads,
        "head_dim": layout.head_dim,
        **_slot_geometry("key", keys),
        **_slot_geometry("value", values),
    }


def _slot_geometry(part: str, slot: Slot) -> Mapping[str, int]:
    return {f"{part}_type": KINDS.index(slot.kind), f"{part}_bytes": slot.nbytes, f"{part}_data_bytes": slot.data_bytes}
