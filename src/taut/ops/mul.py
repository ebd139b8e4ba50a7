"""mul: the product of two values of one shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(inputs[0] == inputs[1], f"mul: {inputs[0]} and {inputs[1]} differ")
    return [inputs[0]]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    return [np.asarray(inputs[0] * inputs[1])]
