"""normalize: each row divided by its Euclidean length (at least 1e-12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Signature


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    return [inputs[0]]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    x = inputs[0].astype(np.float64)
    return [(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)).astype(np.float32)]
