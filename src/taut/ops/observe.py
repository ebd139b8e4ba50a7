"""observe: statistics of a value, taken in beside the model's own work. No output. Its weights are not a checkpoint's: quant/statistics.py's
Statistics, and the batch's picks (rows that join the sample). Attrs: sinks (a sequence's first tokens that are kept apart).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(inputs[0].dtype == "f32", "observe: reads float32 values")
    return []


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    statistics, picks = weights
    statistics.add(inputs[0], context.positions, context.starts, picks, int(attrs["sinks"]))
    return []
