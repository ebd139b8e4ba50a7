"""slice: the columns [begin, end) of a value. Costs nothing: the plan makes it a view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    begin, end = attrs["begin"], attrs["end"]
    need(0 <= begin < end <= inputs[0].features, f"slice [{begin}, {end}) leaves the {inputs[0].features} columns")
    return [Signature(end - begin, inputs[0].space)]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    return [inputs[0][:, attrs["begin"] : attrs["end"]]]
