"""rms_norm: x / sqrt(mean(x²) + eps) * gain (Zhang and Sennrich 2019); with head_dim, for each head's columns alone.

Attrs: eps, head_dim (0: the whole row), add (the input is x + residual), clamp (the largest magnitude of a result; absent: any). Fused forms
list their outputs in the order sum (store_sum), normalized (store_out), quantized (group >= 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Floats, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    x, width = inputs[0], attrs.get("head_dim", 0) or inputs[0].features
    need(weights[0] == (width,), f"rms_norm: the gain has shape {weights[0]}, not ({width},)")
    need(x.features % width == 0, f"rms_norm: {x.features} features are not whole heads of {width}")
    return norm_outputs(inputs, attrs)


def norm_outputs(inputs: Sequence[Signature], attrs: Attrs) -> list[Signature]:
    """Signatures of a norm's outputs, plain or fused."""
    x = inputs[0]
    need(len(inputs) == 1 + bool(attrs.get("add")), "a fused add takes exactly one residual")
    outputs = [x] * (bool(attrs.get("store_sum")) + bool(attrs.get("store_out", True)))
    if attrs.get("group", -1) >= 0:
        outputs.append(Signature(x.features, x.space, "q8"))
    return outputs


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    x = inputs[0].astype(np.float64)
    width = attrs.get("head_dim", 0) or x.shape[1]
    heads = x.reshape(len(x), x.shape[1] // width, width)  # (tokens, heads, width); a chunk may have no row that is wanted
    y = heads / np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + attrs["eps"]) * weights[0]
    return [clamped(y.reshape(x.shape).astype(np.float32), attrs)]


def clamped(y: Floats, attrs: Attrs) -> Floats:
    """Values within attrs["clamp"], where it is there."""
    limit = np.float32(attrs.get("clamp", np.inf))
    return np.clip(y, -limit, limit)
