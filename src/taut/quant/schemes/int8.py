"""int8: symmetric weights, one scale per output channel or per group of inputs; activations quantized at run time per token or per group.

Knows the arithmetic, the packed weight layout and the layout of a quantized row (csrc/quantized_row.h, csrc/linear_q8.h); it is
the specification that the native kernels match bit for bit. Knows no file, model or kernel choice. Pure arrays.

    weights      scale = absmax / 127, q = rint(w * (127 / absmax)) in [-127, 127], stored as q + 128
    activations  the same per piece of the row; a non-finite piece gets scale NaN, so that only its row turns to NaN
    y            act(fma(sum, w_scale, bias)), the sum over K in four canonical segments: (s0 + s1) + (s2 + s3)
                 per piece of a segment: s = fma(float(dot), x_scale, s)
    groups       a scale for each group of a row's inputs, which are the pieces of the activations as well; no column scale is left:
                 s = fma(float(dot) * x_scale, w_scale, s), y = act(sum + bias)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taut.errors import ModelFormatError, UsageError

GROUPS = (128, 64, 32)
PANEL = 64  # output columns of one packed panel
QMAX = 127
ZERO_POINT = 128
ALIGN = 64  # bytes: rows, and the scales inside a row

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]
U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Pieces:
    """Where K is cut. A piece lies inside one scale group and one canonical segment.

    `k` is padded to a multiple of 4; piece p covers inputs [begin[p], begin[p + 1]); segment i holds the pieces
    [segment[i], segment[i + 1]), possibly none.
    """

    k: int
    group: int
    begin: tuple[int, ...]
    segment: tuple[int, int, int, int, int]

    @property
    def count(self) -> int:
        return len(self.begin) - 1


@dataclass(frozen=True)
class RowLayout:
    """Bytes of one quantized row: values at 0, then float32 scales and int32 sums, one of each per piece."""

    values_bytes: int
    num_pieces: int

    @property
    def scales_offset(self) -> int:
        return round_up(self.values_bytes, ALIGN)

    @property
    def sums_offset(self) -> int:
        return self.scales_offset + 4 * self.num_pieces

    @property
    def row_bytes(self) -> int:
        return round_up(self.sums_offset + 4 * self.num_pieces, ALIGN)


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def default_group(k: int) -> int:
    """The activation group for K inputs: the largest of 128, 64, 32 that divides K, else 0 (per token)."""
    return next((group for group in GROUPS if k % group == 0), 0)


def pieces(k: int, group: int) -> Pieces:
    """Cuts K inputs: one piece per group, or (group 0: per token) one per non-empty canonical segment.

    The four segments are as equal as whole units allow, the first ones taking the extra; a unit is the group, else 32 inputs
    where 32 divides K, else 4. Raises UsageError for an unknown group or one that does not divide K.
    """
    if k < 1:
        raise UsageError(f"a linear layer with {k} inputs cannot be quantized; at least 1 is needed")
    if group != 0 and (group not in GROUPS or k % group):
        raise UsageError(
            f"activation group {group} does not fit {k} inputs; accepted: 0 (per token) or one of {GROUPS} that divides them"
        )
    padded = round_up(k, 4)
    unit = group or (32 if padded % 32 == 0 else 4)
    num_units = padded // unit
    ends = np.cumsum([num_units // 4 + (i < num_units % 4) for i in range(4)]).tolist()
    if group:
        return Pieces(padded, group, tuple(range(0, padded + 1, group)), (0, ends[0], ends[1], ends[2], ends[3]))
    begin = sorted({0, *(end * unit for end in ends)})
    cut = [begin.index(end * unit) for end in ends]
    return Pieces(padded, 0, tuple(begin), (0, cut[0], cut[1], cut[2], cut[3]))


def row_layout(k: int, group: int) -> RowLayout:
    """Layout of a quantized row of K inputs."""
    cut = pieces(k, group)
    return RowLayout(cut.k, cut.count)


def quantized_row_bytes(k: int, group: int) -> int:
    """Bytes from one quantized row to the next, a multiple of 64."""
    return row_layout(k, group).row_bytes


def _scale_and_inverse(absmax: F32) -> tuple[F32, F32]:
    """(absmax / 127, 127 / absmax); both 0 where absmax is 0 or too small for a finite inverse."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(QMAX) / absmax
        usable = np.isfinite(inverse)
        return np.where(usable, absmax / np.float32(QMAX), np.float32(0)), np.where(usable, inverse, np.float32(0))


def finite_rows(w: NDArray[np.floating], name: str = "") -> tuple[F32, F32]:
    """`w` (N, K) as float32, and each row's absmax. Raises ModelFormatError when a weight is NaN or infinite."""
    w32: F32 = np.ascontiguousarray(w, dtype=np.float32)
    absmax = np.abs(w32).max(axis=1, initial=np.float32(0))
    bad = np.flatnonzero(~np.isfinite(absmax))
    if bad.size:
        raise ModelFormatError(
            f"{bad.size} of {len(w32)} output rows hold NaN or infinite weights (first: row {bad[0]}); "
            "only finite weights can be quantized: check the checkpoint, or convert it again",
            field=name,
        )
    return w32, absmax


def quantize_weight(w: NDArray[np.floating], *, name: str = "") -> tuple[I8, F32]:
    """Quantizes `w` (N, K) symmetrically per output channel: (q (N, K) int8 in [-127, 127], scale (N,) float32), w ~ q * scale.

    A row of zeros gets scale 0. Raises ModelFormatError when a weight is NaN or infinite.
    """
    w32, absmax = finite_rows(w, name)
    scale, inverse = _scale_and_inverse(absmax)
    q = np.clip(np.rint(w32 * inverse[:, None]), -QMAX, QMAX).astype(np.int8)
    return q, scale


@dataclass(frozen=True)
class Quantized:
    """A quantized weight: `q` (N, K) int8 in [-127, 127], `scale` (N,) float32, or (N, K / group) for groups of inputs; w ~ q * scale."""

    q: I8
    scale: F32

    @property
    def group(self) -> int:
        """Inputs that share a scale; 0: all of a row."""
        return 0 if self.scale.ndim == 1 else int(self.q.shape[1] // self.scale.shape[1])

    def rows(self, rows: slice | NDArray[np.integer]) -> Quantized:
        return Quantized(self.q[rows], self.scale[rows])

    def dequantized(self) -> F32:
        """The weights that this stands for, (N, K) float32."""
        n, k = self.q.shape
        scale = self.scale.reshape(n, -1, 1)
        wide: F32 = (self.q.reshape(n, scale.shape[1], -1).astype(np.float32) * scale).reshape(n, k)
        return wide


def quantize_groups(w: NDArray[np.floating], group: int, *, name: str = "") -> Quantized:
    """As quantize_weight, with a scale for each group of inputs, which must divide K; group 0: one for the row."""
    if not group:
        return Quantized(*quantize_weight(w, name=name))
    w32, _ = finite_rows(w, name)
    n, k = w32.shape
    q, scale = quantize_weight(w32.reshape(n * (k // group), group))
    return Quantized(q.reshape(n, k), scale.reshape(n, k // group))


def packed_shape(n: int, k: int) -> tuple[int, int, int, int]:
    """Shape of the packed weights of an (N, K) matrix: (panels, K / 4, 64 columns, 4 inputs)."""
    return round_up(n, PANEL) // PANEL, round_up(k, 4) // 4, PANEL, 4


def pack(q: I8, scale: F32) -> tuple[U8, F32]:
    """Packs `q` (N, K) and `scale` (N,) for the kernels: (uint8 (N/64, K/4, 64, 4) of q + 128, scale (N padded to 64,)).

    Padding holds 128 (that is: weight 0) and scale 0.
    """
    n, k = q.shape
    num_panels, quads, _, _ = packed_shape(n, k)
    padded: U8 = np.full((num_panels * PANEL, quads * 4), ZERO_POINT, dtype=np.uint8)
    np.bitwise_xor(np.ascontiguousarray(q).view(np.uint8), ZERO_POINT, out=padded[:n, :k])  # + 128
    packed = np.ascontiguousarray(padded.reshape(num_panels, PANEL, quads, 4).transpose(0, 2, 1, 3))
    scales: F32 = np.zeros(num_panels * PANEL, dtype=np.float32)
    scales[:n] = scale
    return packed, scales


def pack_groups(w: Quantized) -> tuple[U8, F32]:
    """Packs a weight in groups for the kernels: data as `pack`'s, scale (N/64, K / group, 64) float32, padding 0."""
    n, groups = w.scale.shape
    packed, _ = pack(w.q, np.zeros(n, np.float32))
    scales: F32 = np.zeros((len(packed) * PANEL, groups), dtype=np.float32)
    scales[:n] = w.scale
    return packed, np.ascontiguousarray(scales.reshape(len(packed), PANEL, groups).transpose(0, 2, 1))


def unpack_scales(scale: F32, n: int) -> F32:
    """The scales of pack_groups as Quantized has them: (N, K / group)."""
    scales: F32 = np.ascontiguousarray(scale.transpose(0, 2, 1)).reshape(-1, scale.shape[1])[:n]
    return scales


def unpack(packed: U8, n: int, k: int) -> I8:
    """The inverse of `pack` and `pack_groups`: q (N, K) int8."""
    num_panels, quads, columns, _ = packed.shape
    rows = packed.transpose(0, 2, 1, 3).reshape(num_panels * columns, quads * 4)[:n, :k]
    q: I8 = np.bitwise_xor(rows, np.uint8(ZERO_POINT)).view(np.int8)
    return q


def quantize_rows(x: F32, group: int) -> tuple[I8, F32, I32]:
    """Quantizes activations `x` (M, K) per group (0: per token).

    Returns q (M, K padded to 4) int8, scales (M, pieces) float32 and sums (M, pieces) int32 = -128 * sum(q). A group (per token:
    the whole row) with a NaN or an infinity gets q = 0 and scale NaN.
    """
    num_rows, k = x.shape
    cut = pieces(k, group)
    padded: F32 = np.zeros((num_rows, cut.k), dtype=np.float32)
    padded[:, :k] = x
    width = group or cut.k
    grouped = padded.reshape(num_rows, padded.shape[1] // width, width)  # (rows, groups, width)
    absmax = np.abs(grouped).max(axis=2)
    finite = np.isfinite(absmax)
    scale, inverse = _scale_and_inverse(np.where(finite, absmax, np.float32(0)))
    safe = np.where(finite[:, :, None], grouped, np.float32(0))
    q = np.clip(np.rint(safe * inverse[:, :, None]), -QMAX, QMAX).astype(np.int8).reshape(num_rows, cut.k)
    group_scales = np.where(finite, scale, np.float32(np.nan))
    scales = group_scales if group else np.repeat(group_scales, cut.count, axis=1)
    sums = -ZERO_POINT * np.add.reduceat(q.astype(np.int32), cut.begin[:-1], axis=1)
    return q, np.ascontiguousarray(scales, dtype=np.float32), sums.astype(np.int32)


def write_rows(q: I8, scales: F32, sums: I32, layout: RowLayout) -> U8:
    """Lays quantized rows out as the kernels read them: (M, row_bytes) uint8."""
    rows: U8 = np.zeros((len(q), layout.row_bytes), dtype=np.uint8)
    rows[:, : layout.values_bytes] = np.ascontiguousarray(q).view(np.uint8)
    rows[:, layout.scales_offset : layout.sums_offset] = np.ascontiguousarray(scales).view(np.uint8)
    rows[:, layout.sums_offset : layout.sums_offset + 4 * layout.num_pieces] = np.ascontiguousarray(sums).view(np.uint8)
    return rows


def fma32(a: F32, b: F32, c: F32) -> F32:
    """float32 fused multiply-add, correctly rounded: the float64 sum is rounded to odd, so the second rounding is exact."""
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.multiply(a, b, dtype=np.float64)  # exact: 24 + 24 bits
        addend = np.asarray(c, dtype=np.float64)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)  # two-sum: total + error is exact
        even = (total.view(np.int64) & 1) == 0
        toward = np.where(error > 0, np.inf, -np.inf)
        inexact = np.isfinite(total) & (error != 0) & even
        return np.where(inexact, np.nextafter(total, toward), total).astype(np.float32)


def linear_reference(rows: tuple[I8, F32, I32], cut: Pieces, packed: U8, w_scale: F32, n: int, bias: F32 | None = None) -> F32:
    """The canonical int8 linear on rows from `quantize_rows`, bit for bit what every kernel computes (without an activation).

    `packed` (N/64, K/4, 64, 4) and `w_scale` (N padded,) come from `pack`, or `w_scale` (N/64, pieces, 64) from `pack_groups`; `bias` is
    (N,). Returns (M, N) float32.
    """
    q, scales, sums = rows
    weights = unpack(packed, n, cut.k).astype(np.float64) + ZERO_POINT  # (N, K) of w + 128
    group_scale = unpack_scales(w_scale, n) if w_scale.ndim == 3 else None  # (N, pieces)
    total: list[F32] = []
    for i in range(4):
        partial: F32 = np.zeros((len(q), n), dtype=np.float32)
        for p in range(cut.segment[i], cut.segment[i + 1]):
            span = slice(cut.begin[p], cut.begin[p + 1])
            dot = q[:, span].astype(np.float64) @ weights[:, span].T + sums[:, p, None]  # exact: below 2**53
            exact = dot.astype(np.int64).astype(np.float32)
            if group_scale is None:
                partial = fma32(exact, scales[:, p, None], partial)
            else:
                partial = fma32(exact * scales[:, p, None], group_scale[None, :, p], partial)
        total.append(partial)
    result: F32 = (total[0] + total[1]) + (total[2] + total[3])
    if group_scale is not None:
        return result if bias is None else result + bias[None, :n]
    if bias is None:
        return result * w_scale[None, :n]
    return fma32(result, w_scale[None, :n], bias[None, :n])
