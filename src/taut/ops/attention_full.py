"""attention_full: bidirectional attention inside each sequence of the batch, without a cache (encoders)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.attention import attend, check_heads
from taut.ops.base import Array, Attrs, Context, Signature


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    check_heads(inputs[0], attrs)
    return [inputs[0]]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    q, k, v = inputs
    shape = (-1, attrs["kv_heads"], attrs["head_dim"])
    out = np.empty_like(q)
    for begin, end in zip(context.starts[:-1], context.starts[1:], strict=True):
        own = slice(begin, end)
        out[own] = attend(q[own], k[own].reshape(shape), v[own].reshape(shape), attrs, None)
    return [out]
