"""linear_q8: x W^T + b, then ops/epilogue.py, over a quantized value and an int8 weight, in the canonical order of quant/schemes/int8.py.

The reference's weight is the pair (q (outputs, inputs) int8, scale (outputs,)), or with `weight_group` (scale (outputs, groups)) in the
same groups as the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops import epilogue
from taut.ops.base import Array, Attrs, Context, Signature, need
from taut.quant.schemes import int8


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    x, (n, k) = inputs[0], weights[0]
    need(x.dtype == "q8", "linear_q8: the input is not quantized")
    need(x.features == k, f"linear_q8: the input has {x.features} features, the weight takes {k}")
    weight_group = attrs.get("weight_group", 0)
    need(
        weight_group in (0, attrs["group"]),
        f"linear_q8: a weight in groups of {weight_group} needs an input in the same groups",
    )
    need(not weight_group or k % weight_group == 0, f"linear_q8: {k} inputs are not whole groups of {weight_group}")
    return epilogue.infer("linear_q8", n, inputs, attrs)


def run(inputs: Sequence[Any], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    q, scale = weights[0]
    bias = weights[1] if len(weights) > 1 else None
    packed, w_scale = int8.pack_groups(int8.Quantized(q, scale)) if attrs.get("weight_group") else int8.pack(q, scale)
    y = int8.linear_reference(inputs[0], int8.pieces(q.shape[1], attrs["group"]), packed, w_scale, len(q), bias)
    return epilogue.apply(y, inputs, attrs)
