"""linear_q4: x W^T + b, then ops/epilogue.py, over a quantized value and an int4 weight, in the canonical order of quant/schemes/int4.py.

The reference's weight is an int4.Quantized; `group` is its and the value's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops import epilogue
from taut.ops.base import Array, Attrs, Context, Signature, need
from taut.quant.schemes import int4


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    x, (n, k) = inputs[0], weights[0]
    need(x.dtype == "q8", "linear_q4: the input is not quantized")
    need(x.features == k, f"linear_q4: the input has {x.features} features, the weight takes {k}")
    need(k % attrs["group"] == 0, f"linear_q4: {k} inputs are not whole groups of {attrs['group']}")
    return epilogue.infer("linear_q4", n, inputs, attrs)


def run(inputs: Sequence[Any], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    y = int4.linear_reference(inputs[0], weights[0], weights[1] if len(weights) > 1 else None)
    return epilogue.apply(y, inputs, attrs)
