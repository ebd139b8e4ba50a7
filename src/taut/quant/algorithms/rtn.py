"""Round to nearest: the range of a group decides its scale. No data, no search.

Asymmetric int4 and int8 are the schemes' own (schemes/int4.py, int8.py); here is the symmetric int4 that other runtimes read:
w ~ scale · (u - 8), stored as an offset of a sixteenth of the scale. Pure arrays.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taut.quant.schemes import int4
from taut.quant.schemes.int8 import F32

_FINEST = np.float32(2.0**-20)


def int4_weight(w: NDArray[np.floating], group: int, *, symmetric: bool = False, name: str = "") -> int4.Quantized:
    """`w` (N, K) in four bits. `symmetric`: the largest magnitude of a group becomes u = 0, so that a scale may be negative, as in
    GGUF's Q4_0. Raises ModelFormatError when a weight is NaN or infinite."""
    asymmetric = int4.quantize_weight(w, group, name=name)
    if not symmetric:
        return asymmetric
    n, k = asymmetric.u.shape
    grouped = unit_rows(w, asymmetric.column).reshape(n, k // group, group)
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    scale = sixteenths(np.where(high >= -low, high, low) / np.float32(-8))
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    u = np.clip(np.rint(grouped * inverse[:, :, None]) + 8, 0, int4.LEVELS).astype(np.uint8).reshape(n, k)
    return int4.Quantized(u, scale.astype(np.float16), (scale / 16).astype(np.float16), asymmetric.column)


def unit_rows(w: NDArray[np.floating], column: F32) -> F32:
    """`w` over its rows' powers of two; rows too small for one are zeros, as int4 rounds them."""
    w32: F32 = np.ascontiguousarray(w, dtype=np.float32)
    usable = np.abs(w32).max(axis=1, initial=0) >= column
    unit: F32 = np.where(usable[:, None], w32 / column[:, None], np.float32(0))
    return unit


def sixteenths(scale: F32) -> F32:
    """The nearest float16 values whose sixteenth is float16 too, so that -8 scales are exact; a scale below 2**-21 is 0."""
    coarse = np.rint(scale / _FINEST) * _FINEST + np.float32(0)  # adding it makes a negative zero positive
    kept: F32 = coarse.astype(np.float16).astype(np.float32)
    return kept


def is_symmetric(q: int4.Quantized) -> bool:
    """Whether every minimum is -8 scales."""
    return bool(np.array_equal(q.offset.astype(np.float32) * 16, q.scale.astype(np.float32)))
