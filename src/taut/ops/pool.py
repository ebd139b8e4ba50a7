"""pool: one row per sequence: its mean, first (cls), last or elementwise maximal token. Other sequences and padding play no part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(attrs["mode"] in ("mean", "cls", "last", "max"), f"pool: mode {attrs['mode']!r} is not mean, cls, last or max")
    return [Signature(inputs[0].features, "sequences")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    out = []
    for begin, end in zip(context.starts[:-1], context.starts[1:], strict=True):
        x = inputs[0][begin:end].astype(np.float64)
        out.append({"mean": x.mean(axis=0), "cls": x[0], "last": x[-1], "max": x.max(axis=0)}[attrs["mode"]])
    return [np.asarray(out, dtype=np.float32)]
