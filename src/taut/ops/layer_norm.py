"""layer_norm: (x - mean) / sqrt(variance + eps) * gain + bias (Ba, Kiros and Hinton 2016). Attrs as in rms_norm, without head_dim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Signature, need
from taut.ops.rms_norm import clamped, norm_outputs


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    width = (inputs[0].features,)
    need(all(shape == width for shape in weights), f"layer_norm: gain and bias must have shape {width}")
    return norm_outputs(inputs, attrs)


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    x = inputs[0].astype(np.float64)
    x = x - x.mean(axis=-1, keepdims=True)
    y = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + attrs["eps"]) * weights[0]
    return [clamped((y + weights[1] if len(weights) > 1 else y).astype(np.float32), attrs)]
