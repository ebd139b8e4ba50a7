"""The search of imatrix.py on one block of groups, which are its columns: ranges are tried, rounded to codes, and fitted.

A fit is the weighted least squares of the codes against the weights: two unknowns for scale and minimum, one for a scale alone. Its
gain, by which fits are compared, is what it takes off the loss of a constant (of zero). Sums are taken about the weighted mean, so that
float32 does. Every function is column by column: a block's width changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from taut.quant.algorithms.rtn import sixteenths
from taut.quant.schemes import int4, int8
from taut.quant.schemes.int8 import F32

# How much of a group's range a candidate cuts off its low and its high end (negative: adds).
_CUTS = (-0.03, 0.0, 0.04, 0.08, 0.13)
_MOST_CUT = 0.2
# The code of a group's largest magnitude in a candidate of a scale alone; the scheme's ends are 8 and 127.
_PEAKS_INT4 = (7.1, 7.4, 7.7, 8.0, 8.3, 8.6)
_PEAKS_INT8 = (127.0, 129.0, 132.0, 137.0, 144.0, 155.0, 170.0)
_ROUNDS = 2  # of rounding and fitting after the best candidate
_TINY = np.float32(1e-30)


@dataclass(frozen=True)
class Block:
    """`x`, `v` (group, columns): the weights, and how much their errors count (positive)."""

    x: F32
    v: F32

    def loss(self, found: F32) -> F32:
        """Of the weights `found`, (columns,). Overwrites `found`."""
        found -= self.x
        found *= found
        return _dot(found, self.v)


def best_affine(block: Block, own: tuple[F32, F32, F32], clip: bool) -> tuple[F32, F32, F32]:
    """(codes (group, columns), scales, offsets (columns,)) of w ~ scale · code - 128 offset; `own`: plain rounding's."""
    low, high = block.x.min(axis=0), block.x.max(axis=0)
    step = (high - low) / np.float32(int4.LEVELS)
    y = (block.x - low) * _inverse(step)  # every group in codes of its own range: candidates are the same numbers for all
    fit = _Affine(y, block.v, clip)
    t = np.empty_like(y)
    for cut_low in _CUTS:
        for cut_high in _CUTS:
            if cut_low + cut_high < _MOST_CUT:
                stretch = 1 / (1 - cut_low - cut_high)
                np.multiply(y, np.float32(stretch), out=t)
                t -= np.float32(cut_low * int4.LEVELS * stretch)
                fit.offer(_rounded(t, 0, int4.LEVELS))
    for _ in range(_ROUNDS):
        fit.offer(_codes(y, fit.scale, fit.low, 0, int4.LEVELS))
    scale = _stored(fit.scale * step)
    offset = _stored((low + fit.low * step) * np.float32(-1 / int4.OFFSET))
    return _no_worse(block, scale, offset, own)


def best_symmetric(block: Block, own: tuple[F32, F32, F32], clip: bool) -> tuple[F32, F32, F32]:
    """As best_affine, with offsets of a sixteenth of the scale: w ~ scale · (code - 8); scales have either sign."""
    peak = _peak(block.x)
    starts = [-peak / np.float32(code) for code in _PEAKS_INT4] + [peak / np.float32(code - 1) for code in _PEAKS_INT4]
    scale = sixteenths(_fit_scale(block, starts, (-8, 7), clip))
    return _no_worse(block, scale, scale * np.float32(1 / 16), own)


def best_scale(block: Block, own: tuple[F32, F32], clip: bool) -> tuple[F32, F32]:
    """(codes (group, columns) in [-127, 127], scales (columns,)) of w ~ scale · code; `own`: plain rounding's."""
    peak = np.abs(_peak(block.x))
    bounds = (-int8.QMAX, int8.QMAX)
    scale = _fit_scale(block, (peak / np.float32(code) for code in _PEAKS_INT8), bounds, clip)
    codes = _codes(block.x, scale, np.zeros_like(scale), *bounds)
    better = block.loss(codes * scale) < block.loss(own[0] * own[1])
    return np.where(better, codes, own[0]), np.where(better, scale, own[1])


class _Affine:
    """The best fit so far of y, whose columns span [0, 15], by low + scale · code."""

    def __init__(self, y: F32, v: F32, clip: bool) -> None:
        self._v, self._clip = v, clip
        self._sum = v.sum(axis=0)
        self._mean = _dot(v, y) / self._sum
        self._vy = (y - self._mean) * v
        self._gain = np.zeros_like(self._mean)
        self.scale, self.low = np.ones_like(self._mean), np.zeros_like(self._mean)

    def offer(self, codes: F32) -> None:
        mean = _dot(codes, self._v) / self._sum
        square = np.einsum("gc,gc,gc->c", codes, codes, self._v)
        slope = _dot(codes, self._vy)
        scale = _slope(slope, square - self._sum * mean * mean, square)
        low = self._mean - scale * mean
        gain = slope * scale
        if not self._clip:
            covers = (low - scale / 2 <= 0) & (low + scale * np.float32(int4.LEVELS + 0.5) >= int4.LEVELS)
            gain = np.where(covers, gain, np.float32(0))
        better = gain > self._gain
        for kept, offered in ((self._gain, gain), (self.scale, scale), (self.low, low)):
            np.copyto(kept, offered, where=better)


def _fit_scale(block: Block, starts: Iterable[F32], bounds: tuple[int, int], clip: bool) -> F32:
    """The scale (columns,) of the best fit of w by scale · code, codes within `bounds`."""
    vx = block.v * block.x
    low, high = block.x.min(axis=0), block.x.max(axis=0)
    nothing = np.zeros_like(low)
    best: F32 = nothing.copy()
    best_gain: F32 = nothing.copy()
    for start in (*starts, *(best for _ in range(_ROUNDS))):  # `best` is filled in place
        codes = _codes(block.x, start, nothing, *bounds)
        slope, square = _dot(codes, vx), np.einsum("gc,gc,gc->c", codes, codes, block.v)
        scale = _slope(slope, square, square)
        gain = slope * scale
        if not clip:
            ends = scale * np.float32(bounds[0] - 0.5), scale * np.float32(bounds[1] + 0.5)
            gain = np.where((np.minimum(*ends) <= low) & (np.maximum(*ends) >= high), gain, nothing)
        better = gain > best_gain
        np.copyto(best_gain, gain, where=better)
        np.copyto(best, scale, where=better)
    return best


def _no_worse(block: Block, scale: F32, offset: F32, own: tuple[F32, F32, F32]) -> tuple[F32, F32, F32]:
    """The found scales and offsets with their codes; `own` in columns where they lose no less."""
    low = offset * np.float32(-int4.OFFSET)
    codes = _codes(block.x, scale, low, 0, int4.LEVELS)
    plain = block.loss(own[0] * own[1] - own[2] * np.float32(int4.OFFSET))
    better = block.loss(codes * scale + low) < plain
    return np.where(better, codes, own[0]), np.where(better, scale, own[1]), np.where(better, offset, own[2])


def _codes(x: F32, scale: F32, low: F32, first: int, last: int) -> F32:
    """The nearest code of every weight where w ~ low + scale · code; 0 where the scale is 0."""
    t = x - low
    t *= _inverse(scale)
    return _rounded(t, first, last)


def _rounded(t: F32, first: int, last: int) -> F32:
    """In place."""
    np.rint(t, out=t)
    return np.clip(t, np.float32(first), np.float32(last), out=t)


def _slope(product: F32, spread: F32, square: F32) -> F32:
    """product / spread; 0 where the spread is nothing beside the rounding of `square`, of which it is the rest."""
    slope: F32 = np.divide(
        product, spread, out=np.zeros_like(product), where=(spread > square * np.float32(1e-5)) & (spread > _TINY)
    )
    return slope


def _inverse(x: F32) -> F32:
    inverse: F32 = np.divide(np.float32(1), x, out=np.zeros_like(x), where=np.abs(x) > _TINY)
    return inverse


def _stored(x: F32) -> F32:
    """As float16 holds it; a fit gone astray becomes 0."""
    kept: F32 = np.where(np.abs(x) < 60_000, x, np.float32(0)).astype(np.float16).astype(np.float32)
    return kept


def _peak(x: F32) -> F32:
    """The value of the largest magnitude of every column, with its sign."""
    low, high = x.min(axis=0), x.max(axis=0)
    peak: F32 = np.where(high >= -low, high, low)
    return peak


def _dot(a: F32, b: F32) -> F32:
    """Column by column, (columns,)."""
    product: F32 = np.einsum("gc,gc->c", a, b)
    return product
