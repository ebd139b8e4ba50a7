"""quantize: rows rounded to int8 with one scale per token (group 0) or per group of inputs; the arithmetic is quant/schemes/int8.py's.

The reference's quantized value is the triple (q, scales, sums) of quantize_rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature
from taut.quant.schemes import int8


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    return [Signature(inputs[0].features, inputs[0].space, "q8")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Any]:
    return [int8.quantize_rows(inputs[0], attrs["group"])]
