"""Static int8 activations: one scale and offset for a whole tensor, from calibration.

    calibrated   scale = (hi - lo) / 254, offset = -(hi + lo) / 2, so that x + offset spans [-127, 127] * scale
    value        q = rint(clip((x + offset) / scale, -127, 127)), half to even: clamped as a float, before it becomes an integer
    linear       W (x + offset) by the int8 kernels; its bias is shifted by -offset * (sum of each row of the dequantized weight)

So the kernels know no zero point. A row with a value beyond what was calibrated, by more than a step, is quantized by its own absmax
instead (the same offset, so the same bias): the first tokens of a sequence, whose activations are out of all proportion, fall there.

The asymmetric quantizer of the field, q = rint(x / scale) + zero_point, has zero_point = offset / scale here.
Pure arrays; the specification that the native kernels match bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taut.errors import UsageError
from taut.quant.schemes import int8
from taut.quant.schemes.int8 import F32, I8, I32, QMAX, ZERO_POINT


@dataclass(frozen=True)
class Calibrated:
    """How a tensor is quantized at run time: x + offset ~ scale * q. Both are exact float32 values; scale is positive and finite."""

    scale: float
    offset: float

    @property
    def zero_point(self) -> int:
        """Of the asymmetric convention, rounded."""
        return round(self.offset / self.scale)

    @property
    def bounds(self) -> tuple[float, float]:
        """The calibrated range of x."""
        return -QMAX * self.scale - self.offset, QMAX * self.scale - self.offset


def calibrated(low: float, high: float) -> Calibrated:
    """Of a range of values. UsageError where it is empty or not finite."""
    if not (np.isfinite(low) and np.isfinite(high) and low <= high):
        raise UsageError(f"a range of activations must be finite and ascending, not [{low}, {high}]; calibrate on other text")
    low, high = min(low, 0.0), max(high, 0.0)  # zero is always exact enough: padding and relu make it the commonest value
    half = max((high - low) / 2, np.finfo(np.float32).tiny * QMAX)
    return Calibrated(float(np.float32(half / QMAX)), float(np.float32(-(high + low) / 2)))


def quantize_rows(x: F32, how: Calibrated) -> tuple[I8, F32, I32, int]:
    """Quantizes `x` (M, K): q, scales and sums as int8.quantize_rows gives them per token, and the rows that fell back to their own
    scale."""
    num_rows, k = x.shape
    cut = int8.pieces(k, 0)
    shifted = np.zeros((num_rows, cut.k), np.float32)
    shifted[:, :k] = x + np.float32(how.offset)
    scale = np.float32(how.scale)
    absmax = np.abs(shifted).max(axis=1)
    within = absmax <= scale * np.float32(QMAX + 1)  # false for a NaN
    own_q, own_scale, own_sums = int8.quantize_rows(shifted[:, :k], 0)
    inverse = np.float32(1) / scale
    safe = np.where(within[:, None], shifted, np.float32(0))
    q = np.rint(np.clip(safe * inverse, -QMAX, QMAX)).astype(np.int8)
    sums = (-ZERO_POINT * np.add.reduceat(q.astype(np.int32), cut.begin[:-1], axis=1)).astype(np.int32)
    rows = within[:, None]
    return (
        np.where(rows, q, own_q),
        np.where(rows, scale, own_scale).astype(np.float32),
        np.where(rows, sums, own_sums),
        int(num_rows - within.sum()),
    )


def shifted_bias(weight: int8.Quantized, bias: F32 | None, how: Calibrated) -> F32:
    """The bias (N,) of a linear whose input is quantized by `how`: W (x + offset) + this = W x + bias."""
    sums = weight.dequantized().sum(axis=1, dtype=np.float64)
    start = np.zeros(len(sums)) if bias is None else bias.astype(np.float64)
    shifted: F32 = (start - np.float64(how.offset) * sums).astype(np.float32)
    return shifted
