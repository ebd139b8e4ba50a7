"""attention: softmax(q k^T scale) v over the sequence's cache, causal by absolute position. Keys and values are read as stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Signature, need, round_bf16


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    check_heads(inputs[0], attrs)
    return [inputs[0]]


def check_heads(q: Signature, attrs: Attrs) -> None:
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    need(q.features == heads * head_dim, f"attention: {q.features} features are not {heads} heads of {head_dim}")
    need(heads % kv_heads == 0, f"attention: {heads} query heads do not share {kv_heads} key heads evenly")


def attend(q: Array, k: Array, v: Array, attrs: Attrs, visible: Array | None) -> Array:
    """q (tokens, heads * head_dim), k and v (keys, kv_heads, head_dim), visible (tokens, keys) or None for all; float32 like q.

    attrs["score_limit"]: scores stay within it.
    attrs["bf16"], attrs["blocks"]: q (times the scale), k, v and the weights before their division are rounded to bfloat16."""
    heads, kv_heads, head_dim = attrs["heads"], attrs["kv_heads"], attrs["head_dim"]
    rounded = round_bf16 if attrs.get("bf16") or attrs.get("blocks") else np.asarray
    q3 = rounded(q * np.float32(attrs["scale"])).reshape(len(q), kv_heads, heads // kv_heads, head_dim).astype(np.float64)
    scores = np.einsum("tkgd,jkd->kgtj", q3, rounded(k).astype(np.float64))
    if limit := attrs.get("score_limit", 0):
        scores = np.clip(scores, -limit, limit)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = rounded(p).astype(np.float64) / p.sum(axis=-1, keepdims=True)
    out = np.einsum("kgtj,jkd->tkgd", weights, rounded(v).astype(np.float64))
    return np.asarray(out.reshape(q.shape), dtype=np.float32)


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    assert context.kv is not None
    out = np.empty_like(inputs[0])
    for s, table in enumerate(context.tables):
        own = slice(context.starts[s], context.starts[s + 1])
        k, v = context.kv.read(attrs["layer"], table, int(context.context[s]))
        visible = np.arange(len(k))[None] <= context.positions[own][:, None]
        out[own] = attend(inputs[0][own], k, v, attrs, visible)
    return [out]
