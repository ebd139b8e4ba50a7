"""The frozen Plan: steps over buffers whose addresses are affine in the batch's counts.

Knows nothing of weights' bytes (the WeightStore has them) nor of a batch. A buffer lives in one of three spaces, scaled by
the number of tokens, of logit rows or of sequences; the address of its row r is

    base[space] + buffer.offset * count[space] + r * buffer.row_bytes

so a smaller step needs no new plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Space = Literal["tokens", "rows", "sequences"]
Attr = int | float | str | bool


@dataclass(frozen=True)
class Buffer:
    """Where an activation lives. `offset` and `row_bytes` are bytes per unit of the space, multiples of 64."""

    space: Space
    offset: int
    row_bytes: int


@dataclass(frozen=True)
class View:
    """Columns [column, column + features) of a buffer. `dtype` is f32, or q8: quantized rows (see quant/schemes/int8.py)."""

    name: str
    buffer: Buffer
    column: int
    features: int
    dtype: Literal["f32", "q8"] = "f32"


@dataclass(frozen=True)
class Step:
    """One call of a kernel. `weights` are WeightStore keys ("" where the kernel's optional weight is absent)."""

    op: str
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    weights: tuple[str, ...] = ()
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    kernel: str = ""
    origin: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Everything decided before a batch arrives.

    `space_bytes` gives the arena bytes per token, per logit row and per sequence; the arena of a step with t tokens, r rows and
    s sequences is `t * space_bytes["tokens"] + r * space_bytes["rows"] + s * space_bytes["sequences"]` bytes.
    """

    steps: tuple[Step, ...]
    outputs: tuple[View, ...]
    space_bytes: Mapping[str, int]
    precision: str

    @property
    def digest(self) -> str:
        """Stable name of this plan (prefix-cache key, receipts, metrics)."""
        return hashlib.sha256(repr((self.precision, self.steps)).encode()).hexdigest()[:16]
