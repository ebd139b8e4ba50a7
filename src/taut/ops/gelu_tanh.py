"""gelu_tanh: the pointwise nonlinearity of ops/activation.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import activation
from taut.ops.base import Array, Attrs, Context, Signature


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    return [inputs[0]]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    return [activation.gelu_tanh(inputs[0].astype(np.float64)).astype(np.float32)]
