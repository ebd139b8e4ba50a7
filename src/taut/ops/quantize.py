"""quantize: rows rounded to int8 with one scale per token (group 0) or per group of inputs, quant/schemes/int8.py; or, where attrs have a
calibrated `scale` and `offset` (group 0), by those: quant/schemes/static.py. Norms and swiglu that write quantized rows take the same attrs.

The reference's quantized value is the triple (q, scales, sums) of quantize_rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature, need
from taut.quant.schemes import int8, static


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(not attrs.get("scale") or attrs["group"] == 0, "quantize: a calibrated scale is one for the whole row, not for groups")
    return [Signature(inputs[0].features, inputs[0].space, "q8")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Any]:
    if attrs.get("scale"):
        return [static.quantize_rows(inputs[0], static.Calibrated(attrs["scale"], attrs["offset"]))[:3]]
    return [int8.quantize_rows(inputs[0], attrs["group"])]
