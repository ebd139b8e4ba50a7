"""SmoothQuant: an input channel that is out of proportion gives its size to the weights that read it (arXiv 2211.10438).

    folded    W x = (W · s) (x / s); the norm before the linears does the division: its gain (and a LayerNorm's bias) is divided by s
    strength  s = absmax of the channel ** a / absmax of its weights ** (1 - a); of several a, and none, the one is taken whose linears, with
              weights and inputs as the scheme has them, come nearest to their float outputs on sampled rows
    exact     s is a power of two, so folding rounds nothing: the float model stays the same bits

It knows nothing of rotary positions, and need not: q, k and v share their input, and only the input is scaled. Pure arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taut.errors import UsageError
from taut.quant.algorithms import dequantize, quantize
from taut.quant.formats import SCHEMES, input_group
from taut.quant.schemes import int8, static
from taut.quant.schemes.int8 import F32

ALPHAS = (0.5, 0.65, 0.8, 0.85, 0.9)
_MAX_OUTPUTS = 512  # of each weight, spread evenly: enough to compare strengths by


@dataclass(frozen=True)
class Smoothing:
    """`scale` (K,) float32, powers of two; `alpha` 0 where nothing is scaled. `errors`: the relative squared output error of every alpha
    tried, 0 (none) among them."""

    scale: F32
    alpha: float
    errors: dict[float, float]


def search(
    absmax: NDArray[np.floating], rows: NDArray[np.floating], weights: Sequence[NDArray[np.floating]], scheme: str
) -> Smoothing:
    """The smoothing of a value that all of `weights` (N_i, K) read in `scheme`.

    `absmax` (K,): the largest magnitude of each of its channels, from calibration; `rows` (R, K): some of it. Where inputs stay
    floats, or nothing was sampled, nothing is scaled. Raises UsageError when shapes do not fit.
    """
    k = len(absmax)
    for what, shape in (("rows", rows.shape), *(("a weight", w.shape) for w in weights)):
        if len(shape) != 2 or shape[1] != k:
            raise UsageError(f"{what} of shape {shape} and {k} channels do not belong together; give arrays of the same K")
    none = np.ones(k, np.float32)
    if SCHEMES[scheme].inputs == "float" or not len(rows) or not weights:
        return Smoothing(none, 0.0, {})
    x = np.ascontiguousarray(rows, dtype=np.float32)
    w_absmax = np.max([np.abs(w).max(axis=0) for w in weights], axis=0).astype(np.float64)
    sampled = [np.ascontiguousarray(w[:: -(-len(w) // _MAX_OUTPUTS)], dtype=np.float32) for w in weights]
    wanted = [x @ w.T for w in sampled]
    scales = {0.0: none} | {alpha: power_of_two(absmax, w_absmax, alpha) for alpha in ALPHAS}
    errors = {alpha: _error(x, sampled, wanted, scale, scheme) for alpha, scale in scales.items()}
    alpha = min(errors, key=lambda each: errors[each])  # the first, that is none, where they tie
    return Smoothing(scales[alpha], alpha, errors)


def power_of_two(absmax: NDArray[np.floating], w_absmax: NDArray[np.floating], alpha: float) -> F32:
    """s of every channel, rounded in the logarithm, their geometric mean near 1; 1 for a channel that is never used."""
    x, w = np.asarray(absmax, np.float64), np.asarray(w_absmax, np.float64)
    used = np.isfinite(x) & (x > 0) & (w > 0)
    if not used.any():
        return np.ones(len(x), np.float32)
    log = alpha * np.log2(x, where=used, out=np.zeros_like(x)) - (1 - alpha) * np.log2(w, where=used, out=np.zeros_like(w))
    steps = np.clip(np.rint(log - log[used].mean()), -24, 24)
    scale: F32 = np.where(used, np.exp2(steps), 1.0).astype(np.float32)
    return scale


def fold(scale: F32, gain: F32, bias: F32 | None, weights: Sequence[F32]) -> tuple[F32, F32 | None, list[F32]]:
    """(gain, bias) of the norm over `scale`, the weights' columns times it: the same function, bit for bit but for values beyond float32's
    smallest."""
    return gain / scale, None if bias is None else bias / scale, [w * scale for w in weights]


def _error(x: F32, weights: list[F32], wanted: list[F32], scale: F32, scheme: str) -> float:
    """Sum over the linears of |Q(x / s) Q(W s)' - x W'|² over |x W'|²: each linear counts alike."""
    inputs = _as_read(x / scale, scheme)
    total = 0.0
    for w, y in zip(weights, wanted, strict=True):
        error = inputs @ dequantize(quantize(w * scale, scheme)).T - y
        total += float(np.vdot(error, error)) / max(float(np.vdot(y, y)), 1e-30)
    return total / len(weights)


def _as_read(x: F32, scheme: str) -> F32:
    """`x` (R, K) as a linear of the scheme sees it."""
    k = x.shape[1]
    if SCHEMES[scheme].inputs == "static":
        how = static.calibrated(float(x.min()), float(x.max()))
        q, scales, _, _ = static.quantize_rows(x, how)
        read: F32 = q[:, :k] * scales[:, :1] - np.float32(how.offset)
        return read
    group = input_group(scheme, k)
    q, scales, _ = int8.quantize_rows(x, group)
    if not group:
        by_token: F32 = q[:, :k] * scales[:, :1]
        return by_token
    wide: F32 = (q.reshape(len(x), -1, group) * scales[:, :, None]).reshape(len(x), -1)
    return wide
