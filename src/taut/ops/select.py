"""select: the rows whose outputs are wanted (a decoder's logit rows)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    return [Signature(inputs[0].features, "rows")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    return [inputs[0][context.rows]]
