"""One int8 linear on a chosen ISA, beside the numpy definition of quant/schemes/int8.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.kernels import native
from taut.quant.schemes import int8

Floats = NDArray[np.float32]
ISAS = native.runnable_isas() if native.is_built() else []


@dataclass(frozen=True)
class Problem:
    """Quantized rows and packed weights of y (M, n)."""

    q: NDArray[np.int8]  # (M, K)
    scales: Floats  # (M, pieces)
    sums: NDArray[np.int32]  # (M, pieces)
    cut: int8.Pieces
    packed: NDArray[np.uint8]  # (N/64, K/4, 64, 4)
    w_scale: Floats  # (N padded,), or (N/64, pieces, 64) of weights in groups
    n: int
    bias: Floats | None  # (n,)

    @property
    def num_rows(self) -> int:
        return len(self.q)

    def first_rows(self, count: int) -> Problem:
        return replace(self, q=self.q[:count], scales=self.scales[:count], sums=self.sums[:count])


def problem(rows: int, k: int, n: int, group: int, *, bias: bool = False, seed: int = 0, grouped: bool = False) -> Problem:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, k)).astype(np.float32) * rng.lognormal(0, 2, (rows, 1)).astype(np.float32)
    w = rng.standard_normal((n, k)).astype(np.float32)
    shift = rng.standard_normal(n).astype(np.float32) if bias else None
    return from_floats(x, w, group, shift, grouped=grouped)


def from_floats(x: Floats, w: Floats, group: int, bias: Floats | None = None, *, grouped: bool = False) -> Problem:
    """grouped: the weights have a scale for each of the groups."""
    packed, w_scale = int8.pack_groups(int8.quantize_groups(w, group)) if grouped else int8.pack(*int8.quantize_weight(w))
    return Problem(*int8.quantize_rows(x, group), int8.pieces(x.shape[1], group), packed, w_scale, len(w), bias)


def reference(p: Problem) -> Floats:
    return int8.linear_reference((p.q, p.scales, p.sums), p.cut, p.packed, p.w_scale, p.n, p.bias)


def run(p: Problem, isa: str, *, cuts: Sequence[int] | None = None, activation: int = 0, pool: Any = None) -> Floats:
    """y from the native kernel. `cuts` are row boundaries of separate calls; rows outside them stay NaN."""
    module = native.module()
    layout = int8.row_layout(p.cut.k, p.cut.group)
    rows = aligned(int8.write_rows(p.q, p.scales, p.sums, layout))
    y = np.full((p.num_rows, p.n), np.nan, np.float32)
    bias = None if p.bias is None else np.concatenate([p.bias, np.zeros(len(p.packed) * int8.PANEL - p.n, np.float32)])
    begin, segment = list(p.cut.begin), list(p.cut.segment)
    spans = [0, p.num_rows] if cuts is None else list(cuts)
    module.linear(
        rows, layout.row_bytes, layout.scales_offset, begin, segment, aligned(p.packed), p.w_scale.reshape(-1), bias, y,
        activation=activation, rows=spans, weight_group=p.cut.group if p.w_scale.ndim == 3 else 0, pool=pool, isa=isa,
    )  # fmt: skip
    return y


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy at a 64-byte boundary."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def same_bits(a: Floats, b: Floats) -> bool:
    """Equal bit for bit, any NaN equal to any other."""
    return bool(((a.view(np.int32) == b.view(np.int32)) | (np.isnan(a) & np.isnan(b))).all())
