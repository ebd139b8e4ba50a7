"""rope: rotary position embedding (Su et al. 2021) with half-split pairs: column i turns with column i + rotary_dim / 2.

The table is (positions, 2, rotary_dim / 2): cosines, then sines. Columns beyond rotary_dim of a head pass through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taut.ops.base import Array, Attrs, Context, Floats, Signature, need


@dataclass(frozen=True)
class RopeTable:
    """How to make the table: angle(p, i) = p * theta^(-2i / rotary_dim) / factor (linear scaling), in float64, rounded once."""

    theta: float
    rotary_dim: int
    positions: int
    factor: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.positions, self.rotary_dim)

    def build(self, positions: int) -> Floats:
        """The first `positions` rows, (positions, rotary_dim) float32."""
        exponent = np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim
        angle = np.outer(np.arange(positions) / self.factor, self.theta**-exponent)
        return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    head_dim, rotary_dim = attrs["head_dim"], attrs["rotary_dim"]
    need(inputs[0].features % head_dim == 0, f"rope: {inputs[0].features} features are not whole heads of {head_dim}")
    need(0 < rotary_dim <= head_dim and rotary_dim % 2 == 0, f"rope: rotary_dim {rotary_dim} does not fit head_dim {head_dim}")
    return [inputs[0]]


def run(inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    x, half = inputs[0], attrs["rotary_dim"] // 2
    heads = x.reshape(len(x), -1, attrs["head_dim"]).astype(np.float64)  # (tokens, heads, head_dim)
    turn = weights[0][context.positions].astype(np.float64)[:, None]  # (tokens, 1, rotary_dim)
    cos, sin = turn[..., :half], turn[..., half:]
    a, b = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
    heads[..., :half] = a * cos - b * sin
    heads[..., half : 2 * half] = b * cos + a * sin
    return [heads.reshape(x.shape).astype(np.float32)]
