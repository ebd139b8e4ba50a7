"""embed: rows of a table chosen by token id, position or token type. A tied int8 head serves as table with its (q, scale),
by row or in groups of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Floats, Signature, need
from taut.quant.schemes import int8


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(not inputs and len(weights) == 1, "embed takes no inputs and one table")
    need(attrs["index"] in ("ids", "positions", "types"), f"embed index {attrs['index']!r} is not ids, positions or types")
    return [Signature(weights[0][1])]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    chosen = getattr(context, attrs["index"]) + attrs["offset"]
    if isinstance(weights[0], tuple):
        return [int8.Quantized(*weights[0]).rows(chosen).dequantized()]
    table: Floats = weights[0]  # (entries, features)
    return [table[chosen].copy()]
