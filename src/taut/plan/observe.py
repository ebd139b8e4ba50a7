"""with_observers: a plan that takes statistics of every value that a linear reads, and stops where none is left to read.

Knows where the statistics' arrays lie and when a batch begins and ends; not what is done with them (compress/calibrate.py), nor what
they mean (quant/statistics.py). The observing plan shares the weights of the plan that it was made of: the statistics' arrays lie beside
them in the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.errors import NumericalError, UsageError
from taut.kernels.table import select
from taut.plan.plan import Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.statistics import NUM_SAMPLES, Sample, Statistics

MOST_WINDOWS = 64  # sequences of one batch
ARRAYS = ("histogram", "absmax", "squares", "samples", "ranges")  # of each value
PICKS = "observe:picks"  # shared by all


def with_observers(plan: Plan, *, sinks: int) -> Plan:
    """`plan` with a step before the first linear that reads a value, and without what follows the last. It has no outputs; run it with
    every token's row. UsageError where linears read quantized rows: their values are nowhere."""
    if mixed := sorted({step.op for step in plan.steps if step.op in ("quantize", "linear_q8", "linear_q4", "qkv_attention")}):
        raise UsageError(
            f"calibration reads float activations, but this model has the steps {', '.join(mixed)}; "
            "load it with precision fp32, bf16 or fp16 and without pins to int8 or int4"
        )
    steps: list[Step] = []
    seen: set[str] = set()
    last = 0
    for step in plan.steps:
        if step.op == "linear" and step.inputs[0].name not in seen:
            seen.add(step.inputs[0].name)
            steps.append(_observer(step, sinks))
            last = len(steps)
        steps.append(step)
    return replace(plan, steps=tuple(steps[:last]), outputs=())


def _observer(linear: Step, sinks: int) -> Step:
    view = linear.inputs[0]
    attrs = {"sinks": sinks, "windows": MOST_WINDOWS, "samples": NUM_SAMPLES}
    keys = (*(_key(view.name, array) for array in ARRAYS), PICKS)
    kernel = select("observe", linear.kernel.partition("/")[0]).name
    return Step("observe", (view,), (), keys, attrs, kernel, (f"{view.name}.observe",))


def _key(value: str, array: str) -> str:
    return f"observe:{value}:{array}"


class Observation:
    """The statistics of an observing plan's values, filled while it runs on `store`: `begin`, run the batch, `end`. With `resumed`, the
    sample and the statistics of an earlier one, it goes on there; ValueError when they are of other values."""

    def __init__(self, plan: Plan, store: WeightStore, resumed: tuple[Sample, Mapping[str, Statistics]] | None = None) -> None:
        self._views: list[View] = [step.inputs[0] for step in plan.steps if step.op == "observe"]
        assert self._views, "the plan observes nothing"
        self._sinks = next(int(step.attrs["sinks"]) for step in plan.steps if step.op == "observe")
        self.sample, found = resumed or (Sample(), {view.name: Statistics(view.features) for view in self._views})
        self.statistics = dict(found)
        if {name: own.channels for name, own in found.items()} != {view.name: view.features for view in self._views}:
            raise ValueError("the statistics are of other values")
        self._ranges = np.zeros((len(self._views), MOST_WINDOWS, 2, 2), np.float32)
        self._picks = np.zeros(1 + 2 * NUM_SAMPLES, np.int32)  # their number, then row and slot of each
        self._chosen: list[tuple[int, int]] = []
        weights = {key: store[key] for key in store}
        self.store = WeightStore({**weights, **self._packed()}, store.rows)

    def _packed(self) -> dict[str, PackedWeight]:
        """The arrays by key, in the guise of weights: a step takes the address of any."""
        arrays: dict[str, NDArray[Any]] = {PICKS: self._picks}
        for view, ranges in zip(self._views, self._ranges, strict=True):
            own = self.statistics[view.name]
            arrays |= {_key(view.name, name): getattr(own, name) for name in ARRAYS[:-1]}
            arrays[_key(view.name, ARRAYS[-1])] = ranges
        return {key: PackedWeight("table", array.shape, array) for key, array in arrays.items()}

    def begin(self, positions: NDArray[Any]) -> None:
        """Choose the sample's rows among the next batch's tokens."""
        self._chosen = self.sample.choose(positions < self._sinks)
        self._picks[0] = len(self._chosen)
        self._picks[1 : 1 + 2 * len(self._chosen)] = np.array(self._chosen, np.int32).reshape(-1)

    def end(self, positions: NDArray[Any], starts: NDArray[Any]) -> None:
        """Take in the batch's windows. NumericalError when a value was not finite."""
        is_sink = positions < self._sinks
        for view, ranges in zip(self._views, self._ranges, strict=True):
            self.statistics[view.name].fold(ranges[: len(starts) - 1], is_sink, starts, self._chosen)
        if bad := self._first_bad():
            raise NumericalError(
                f"calibration met a non-finite value in {bad}; the model cannot be calibrated in this precision or on this text"
            )

    def _first_bad(self) -> str:
        return next((view.name for view in self._views if not self.statistics[view.name].is_finite), "")
