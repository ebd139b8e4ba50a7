"""embed: rows of a table chosen by token id, position or token type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Floats, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(not inputs and len(weights) == 1, "embed takes no inputs and one table")
    need(attrs["index"] in ("ids", "positions", "types"), f"embed index {attrs['index']!r} is not ids, positions or types")
    return [Signature(weights[0][1])]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    table: Floats = weights[0]  # (entries, features)
    return [table[getattr(context, attrs["index"]) + attrs["offset"]].copy()]
