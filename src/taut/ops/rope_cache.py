"""rope_cache: rope on queries and keys, then cache_write; fused. Inputs q, k, v; outputs the turned queries and the cache's order value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops import cache_write, rope
from taut.ops.base import Array, Attrs, Context, Signature


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    q, k, v = inputs
    return [*rope.infer([q], weights, attrs), *cache_write.infer([*rope.infer([k], weights, attrs), v], (), attrs)]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    q, k, v = inputs
    (turned_q,), (turned_k,) = rope.run([q], weights, attrs, context), rope.run([k], weights, attrs, context)
    return [turned_q, *cache_write.run([turned_k, v], (), attrs, context)]
