"""What a quantized linear does to its sums before it writes them. Not an op itself: linear_q8 and linear_q4 call it.

Attrs, all optional, in the order in which they are applied:
    act        a nonlinearity by name
    gated      the columns are panels of HALF columns of a gate and the same HALF of what it gates: y = act(gate) * other, half as wide
    add        a second input, the residual, is added
    out_group  the rows are quantized in groups of so many columns
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import activation
from taut.ops.base import Attrs, Floats, Signature, need
from taut.quant.schemes import int8

HALF = int8.PANEL // 2
OUT_GROUPS = (128, 64, 32)  # of quantized output: those that whole panels fill


def infer(op: str, n: int, inputs: Sequence[Signature], attrs: Attrs) -> list[Signature]:
    """Signature of what a linear of n weight rows writes."""
    x, gated, group = inputs[0], bool(attrs.get("gated")), int(attrs.get("out_group", 0))
    columns = n // 2 if gated else n
    need(len(inputs) == 1 + bool(attrs.get("add")), f"{op}: a fused add takes exactly one residual")
    need(not gated or (n % int8.PANEL == 0 and not attrs.get("add")), f"{op}: {n} columns cannot be gated in panels")
    need(not attrs.get("add") or inputs[1] == Signature(columns, x.space), f"{op}: the residual is not as wide as the output")
    need(not group or (group in OUT_GROUPS and columns % group == 0), f"{op}: {columns} columns are not groups of {group}")
    return [Signature(columns, x.space, "q8" if group else "f32")]


def apply(y: Floats, inputs: Sequence[Any], attrs: Attrs) -> list[Any]:
    """`y`: the linear's sums with their bias (tokens, n)."""
    act, out = str(attrs.get("act", "")), y.astype(np.float64)
    if attrs.get("gated"):
        panels = out.reshape(len(out), -1, 2, HALF)  # (tokens, panels, gate or other, columns)
        out = (activation.apply(act, panels[:, :, 0]) * panels[:, :, 1]).reshape(len(out), -1)
    else:
        out = activation.apply(act, out)
    result = out.astype(np.float32)
    if attrs.get("add"):
        result = result + inputs[1]
    return [int8.quantize_rows(result, int(attrs["out_group"])) if attrs.get("out_group") else result]
