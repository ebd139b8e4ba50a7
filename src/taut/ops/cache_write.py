"""cache_write: store the tokens' keys and values in the KV cache, in the cache's format. The output only orders the readers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    need(inputs[0] == inputs[1], f"cache_write: keys {inputs[0]} and values {inputs[1]} differ")
    return [Signature(0, inputs[0].space, "kv")]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    assert context.kv is not None
    for s, table in enumerate(context.tables):
        own = slice(context.starts[s], context.starts[s + 1])
        shape = (-1, inputs[0].shape[1] // attrs["head_dim"], attrs["head_dim"])  # (tokens, kv_heads, head_dim)
        context.kv.write(
            attrs["layer"], table, context.positions[own], inputs[0][own].reshape(shape), inputs[1][own].reshape(shape)
        )
    return [inputs[0][:, :0]]
