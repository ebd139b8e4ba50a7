"""linear: y = act(x W^T + b). The weight is (outputs, inputs), as checkpoints store it. bf16: the input is rounded to
bfloat16, as the weight already is; their products are exact and sums keep float precision. An int8 weight (store i8) is the pair
(q, scale) of quant/schemes/w8a16.py: its columns are scaled once, after the sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import activation
from taut.ops.base import Array, Attrs, Context, Signature, need, round_bf16


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    x, (n, k) = inputs[0], weights[0]
    need(x.features == k, f"linear: the input has {x.features} features, the weight takes {k}")
    need(len(weights) < 2 or weights[1] == (n,), f"linear: the bias must have {n} entries")
    return [Signature(n, x.space)]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    x = round_bf16(inputs[0]) if attrs.get("bf16") else inputs[0]
    w, scale = weights[0] if isinstance(weights[0], tuple) else (weights[0], np.float32(1))
    y = x.astype(np.float64) @ w.astype(np.float64).T * scale
    if len(weights) > 1:
        y = y + weights[1]
    return [activation.apply(attrs.get("act", ""), y).astype(np.float32)]
