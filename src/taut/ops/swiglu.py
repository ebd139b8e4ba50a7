"""swiglu: act(left half) * right half of one value (Shazeer 2020), optionally quantized (group >= 0). Attrs: act, group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import activation
from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(inputs[0].features % 2 == 0, f"swiglu: {inputs[0].features} columns have no halves")
    return [Signature(inputs[0].features // 2, inputs[0].space, "q8" if attrs.get("group", -1) >= 0 else "f32")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    left, right = np.split(inputs[0].astype(np.float64), 2, axis=1)
    return [(activation.apply(str(attrs["act"]), left) * right).astype(np.float32)]
