"""int4: weights of four bits in groups of 32, 64 or 128 inputs, each with a scale and an offset; activations are int8 in the same groups.

Knows the arithmetic and the packed layout (csrc/linear_q4.h) and is the specification that the native kernels match bit for bit.
Knows no file, model or kernel choice, and not how scales are best chosen: here they span each group's range. Pure arrays.

    column  c = the power of two at or below the row's absmax: w / c is exact and fits float16 whatever the model's scale
    group   d = float16((max - min) / 15), o = float16(-min / 128), u = rint((w / c + 128 o) / d) in [0, 15]
    weight  w ~ c * (d * u - 128 o)
    y       act(fma(sum, c, bias)); per group of a row with scale s, sum of products dot = sum u q, and S = -128 sum q:
            sum = fma(s S, o, fma(float(dot) s, d, sum)), over K in the four canonical segments of int8.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taut.quant.schemes import int8

GROUPS = (128, 64, 32)
LEVELS = 15
OFFSET = 128  # the offset is stored as -min / 128, the sums of quantized rows as -128 sum q
SCALE_BYTES = 2 * 2 * int8.PANEL  # a group's scales and offsets of one panel, float16

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class Quantized:
    """A quantized weight (N, K): `u` (N, K) uint8 in [0, 15], `scale` and `offset` (N, K / group) float16, `column` (N,) float32."""

    u: U8
    scale: F16
    offset: F16
    column: F32

    @property
    def group(self) -> int:
        return int(self.u.shape[1] // self.scale.shape[1])

    def rows(self, rows: slice | NDArray[np.integer]) -> Quantized:
        return Quantized(self.u[rows], self.scale[rows], self.offset[rows], self.column[rows])


def group_for(k: int, wanted: int) -> int:
    """The largest group of at most `wanted` inputs that divides K; 0 when none does."""
    return next((group for group in GROUPS if group <= wanted and k % group == 0), 0)


def quantize_weight(w: NDArray[np.floating], group: int, *, name: str = "") -> Quantized:
    """Quantizes `w` (N, K), K a multiple of `group`. Raises ModelFormatError when a weight is NaN or infinite."""
    w32, absmax = int8.finite_rows(w, name)
    column, inverse = _column(absmax)
    grouped = (w32 * inverse[:, None]).reshape(len(w32), -1, group)
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    zero = np.float32(0)  # adding it makes a negative zero positive
    scale = ((high - low) / np.float32(LEVELS) + zero).astype(np.float16)
    offset = (low * np.float32(-1 / OFFSET) + zero).astype(np.float16)
    wide = scale.astype(np.float32)
    with np.errstate(divide="ignore"):
        per_level = np.where(wide > 0, np.float32(1) / wide, np.float32(0))
    shifted = grouped + offset.astype(np.float32)[:, :, None] * np.float32(OFFSET)
    u = np.clip(np.rint(shifted * per_level[:, :, None]), 0, LEVELS).astype(np.uint8).reshape(w32.shape)
    return Quantized(u, scale, offset, column)


def _column(absmax: F32) -> tuple[F32, F32]:
    """(The power of two at or below absmax, its inverse); 1 and 0 for a row of zeros or of subnormal weights only."""
    power = np.minimum(absmax.view(np.int32) & 0x7F800000, np.int32(0x7E800000))
    column: F32 = power.astype(np.int32).view(np.float32)
    usable = power > 0
    with np.errstate(divide="ignore"):
        inverse = np.where(usable, np.float32(1) / column, np.float32(0)).astype(np.float32)
    return np.where(usable, column, np.float32(1)).astype(np.float32), inverse


def dequantize(q: Quantized) -> F32:
    """The weights that `q` stands for, (N, K) float32."""
    n, k = q.u.shape
    levels = q.u.reshape(n, -1, q.group).astype(np.float64) * q.scale.astype(np.float64)[:, :, None]
    centred = levels - OFFSET * q.offset.astype(np.float64)[:, :, None]
    wide: F32 = (centred.reshape(n, k) * q.column.astype(np.float64)[:, None]).astype(np.float32)
    return wide


def group_bytes(group: int) -> int:
    """Bytes of one group of one panel: nibbles, then scales, then offsets."""
    return group * int8.PANEL // 2 + SCALE_BYTES


def packed_shape(n: int, k: int, group: int) -> tuple[int, int, int]:
    """Shape of the packed weights of an (N, K) matrix: (panels, K / group, bytes of a group)."""
    return int8.round_up(n, int8.PANEL) // int8.PANEL, k // group, group_bytes(group)


def pack(q: Quantized) -> tuple[U8, F32]:
    """Packs for the kernels: (uint8 of packed_shape, column (N padded to 64,)).

    A group of a panel holds [group / 8][64 columns][4 bytes], byte b of octet j = u[8 j + b] | u[8 j + 4 + b] << 4, then the 64
    scales and the 64 offsets. Padding columns hold zeros.
    """
    (n, k), group = q.u.shape, q.group
    shape = packed_shape(n, k, group)
    u: U8 = np.zeros((shape[0] * int8.PANEL, k), np.uint8)
    u[:n] = q.u
    octets = u.reshape(shape[0], int8.PANEL, shape[1], group // 8, 2, 4)
    nibbles = (octets[..., 0, :] | octets[..., 1, :] << 4).transpose(0, 2, 3, 1, 4)  # (panels, groups, octets, columns, 4)
    packed: U8 = np.zeros(shape, np.uint8)
    packed[:, :, :-SCALE_BYTES] = nibbles.reshape(*shape[:2], -1)
    for index, values in enumerate((q.scale, q.offset)):
        padded: F16 = np.zeros((shape[0] * int8.PANEL, shape[1]), np.float16)
        padded[:n] = values
        begin = shape[2] - SCALE_BYTES + index * SCALE_BYTES // 2
        halves = np.ascontiguousarray(padded.reshape(shape[0], int8.PANEL, shape[1]).transpose(0, 2, 1))
        packed[:, :, begin : begin + SCALE_BYTES // 2] = halves.view(np.uint8)
    column: F32 = np.zeros(shape[0] * int8.PANEL, np.float32)
    column[:n] = q.column
    return packed, column


def unpack(packed: U8, column: F32, n: int, k: int) -> Quantized:
    """The inverse of `pack`."""
    panels, groups, size = packed.shape
    bytes_ = packed[:, :, : size - SCALE_BYTES].reshape(panels, groups, -1, int8.PANEL, 4)
    octets = np.stack([bytes_ & 15, bytes_ >> 4], axis=4)  # (panels, groups, octets, columns, 2, 4)
    u = np.ascontiguousarray(octets.transpose(0, 3, 1, 2, 4, 5)).reshape(panels * int8.PANEL, k)[:n]
    halves = np.ascontiguousarray(packed[:, :, size - SCALE_BYTES :]).view(np.float16).reshape(panels, groups, 2, int8.PANEL)
    scale, offset = (np.ascontiguousarray(halves[:, :, i].transpose(0, 2, 1)).reshape(-1, groups)[:n] for i in range(2))
    return Quantized(u, scale, offset, column[:n])


def linear_reference(rows: tuple[int8.I8, F32, int8.I32], w: Quantized, bias: F32 | None = None) -> F32:
    """The canonical int4 linear on rows from `int8.quantize_rows` with the weight's group, bit for bit what every kernel computes
    (without an activation). `bias` is (N,). Returns (M, N) float32."""
    q, scales, sums = rows
    cut = int8.pieces(w.u.shape[1], w.group)
    total: list[F32] = []
    for i in range(4):
        partial: F32 = np.zeros((len(q), len(w.u)), np.float32)
        for p in range(cut.segment[i], cut.segment[i + 1]):
            span, s = slice(cut.begin[p], cut.begin[p + 1]), scales[:, p, None]
            dot = (q[:, span].astype(np.float64) @ w.u[:, span].astype(np.float64).T).astype(np.float32)  # exact
            partial = int8.fma32(dot * s, w.scale[None, :, p].astype(np.float32), partial)
            partial = int8.fma32(s * sums[:, p, None].astype(np.float32), w.offset[None, :, p].astype(np.float32), partial)
        total.append(partial)
    result: F32 = (total[0] + total[1]) + (total[2] + total[3])
    if bias is None:
        return result * w.column[None]
    return int8.fma32(result, w.column[None], bias[None])
