"""The pointwise nonlinearities, by name, in float64. Not an op itself: the ops silu, gelu, … and the fused epilogues call it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
_erf = np.frompyfunc(math.erf, 1, 1)


def silu(x: Doubles) -> Doubles:
    """x * sigmoid(x), without overflow for very negative x."""
    e = np.exp(-np.abs(x))
    return np.asarray(x * np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def gelu(x: Doubles) -> Doubles:
    """0.5 x (1 + erf(x / sqrt 2)); Hendrycks and Gimpel 2016."""
    return np.asarray(0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), dtype=np.float64)))


def gelu_tanh(x: Doubles) -> Doubles:
    """The tanh approximation of gelu."""
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def relu(x: Doubles) -> Doubles:
    return np.maximum(x, 0)


def tanh(x: Doubles) -> Doubles:
    return np.tanh(x)


FUNCTIONS: dict[str, Callable[[Doubles], Doubles]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
    "tanh": tanh,
}


def apply(name: str, x: Doubles) -> Doubles:
    """x itself for the empty name."""
    return FUNCTIONS[name](x) if name else x
