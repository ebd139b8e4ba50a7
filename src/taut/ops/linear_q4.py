"""linear_q4: act(x W^T + b) over a quantized value and an int4 weight, in the canonical order of quant/schemes/int4.py.

The reference's weight is an int4.Quantized; `group` is its and the value's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import activation
from taut.ops.base import Array, Attrs, Context, Signature, need
from taut.quant.schemes import int4


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    x, (n, k) = inputs[0], weights[0]
    need(x.dtype == "q8", "linear_q4: the input is not quantized")
    need(x.features == k, f"linear_q4: the input has {x.features} features, the weight takes {k}")
    need(k % attrs["group"] == 0, f"linear_q4: {k} inputs are not whole groups of {attrs['group']}")
    return [Signature(n, x.space)]


def run(inputs: Sequence[Any], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    y = int4.linear_reference(inputs[0], weights[0], weights[1] if len(weights) > 1 else None)
    return [activation.apply(attrs.get("act", ""), y.astype(np.float64)).astype(np.float32)]
