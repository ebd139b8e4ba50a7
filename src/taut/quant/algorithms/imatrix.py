"""imatrix: of every group of weights, the scale and minimum that lose least in what the layer puts out.

    loss      sum_k v[k] (w[k] - ŵ[k])², v[k] = importance[k] · sqrt(mean(w²) + w[k]²): importance is the mean square of input k, the
              mean is over the output row; the root is ggml's empirical factor (ggml-quants.c; ik_llama.cpp discussion 140)
    search    search.py: a grid of ranges, each rounded and fitted by weighted least squares; numbers are rounded as they are stored,
              and codes are chosen with those
    never worse than plain rounding (rtn.py): a group whose loss did not fall keeps its numbers

Inputs that calibration never saw (importance zero or NaN) count as the mean of their group. `clip=False` is for q and k of models with
rotary positions: then no weight lies beyond its group's range by more than half a step, as in plain rounding.

Pure arrays; float32, in blocks of rows that fit a cache, on a few threads whose number changes nothing. Knows no model and no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from taut.errors import UsageError
from taut.quant.algorithms import rtn
from taut.quant.algorithms.search import Block, best_affine, best_scale, best_symmetric
from taut.quant.schemes import int4, int8
from taut.quant.schemes.int8 import F32

_BLOCK = 16_384  # weights searched at a time
_NUM_THREADS = max(1, min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))


def int4_weight(
    w: NDArray[np.floating],
    group: int,
    importance: NDArray[np.floating] | None = None,
    *,
    symmetric: bool = False,
    clip: bool = True,
    name: str = "",
) -> int4.Quantized:
    """`w` (N, K) in four bits, K a multiple of `group`; `importance` (K,), or None: all inputs alike. `symmetric`: the minimum is -8
    scales. Raises ModelFormatError when a weight is NaN or infinite, UsageError when `importance` does not fit."""
    plain = rtn.int4_weight(w, group, symmetric=symmetric, name=name)
    unit = rtn.unit_rows(w, plain.column)
    n, k = unit.shape
    counts = _counts(importance, group, k)
    u, scale, offset = np.empty_like(plain.u), np.empty_like(plain.scale), np.empty_like(plain.offset)
    search = best_symmetric if symmetric else best_affine

    def fill(rows: slice) -> None:
        own = _columns(plain.u[rows], group), _flat(plain.scale[rows]), _flat(plain.offset[rows])
        codes, scales, offsets = search(_block(unit[rows], counts), own, clip)
        u[rows] = codes.T.reshape(-1, k)
        scale[rows], offset[rows] = scales.reshape(scale[rows].shape), offsets.reshape(offset[rows].shape)

    _each_block(fill, n, k)
    return int4.Quantized(u, scale, offset, plain.column)


def int8_weight(
    w: NDArray[np.floating],
    group: int = 0,
    importance: NDArray[np.floating] | None = None,
    *,
    clip: bool = True,
    name: str = "",
) -> int8.Quantized:
    """`w` (N, K) in eight bits, a scale for each `group` of inputs (0: for each row); the rest as int4_weight."""
    plain = int8.quantize_groups(w, group, name=name)
    w32, absmax = int8.finite_rows(w)
    n, k = w32.shape
    width = group or k
    counts = _counts(importance, width, k)
    exponents = np.where(absmax > 0, np.frexp(absmax)[1], 0)
    q, scale = np.empty_like(plain.q), np.empty_like(plain.scale)

    def fill(rows: slice) -> None:
        power = exponents[rows].reshape(-1, 1)
        shape = len(power), k // width
        own = _columns(plain.q[rows], width), _flat(np.ldexp(plain.scale[rows].reshape(shape), -power))
        codes, scales = best_scale(_block(np.ldexp(w32[rows], -power), counts), own, clip)
        q[rows] = codes.T.reshape(-1, k)
        scale[rows] = np.ldexp(scales.reshape(shape), power).reshape(scale[rows].shape)

    _each_block(fill, n, k)
    return int8.Quantized(q, scale)


def _each_block(fill: Callable[[slice], None], n: int, k: int) -> None:
    rows = max(1, _BLOCK // k)
    with ThreadPoolExecutor(_NUM_THREADS) as threads:
        list(threads.map(fill, (slice(begin, min(begin + rows, n)) for begin in range(0, n, rows))))


def _counts(importance: NDArray[np.floating] | None, group: int, k: int) -> F32:
    """How much each input counts, (group, 1, K / group): positive, its mean 1."""
    if importance is None:
        return np.ones((group, 1, k // group), np.float32)
    given = np.asarray(importance, np.float64)
    if given.shape != (k,):
        raise UsageError(
            f"importance has shape {given.shape}; a weight of {k} inputs needs ({k},), the mean square of each input"
        )
    known = np.where(np.isfinite(given) & (given > 0), given, 0.0).reshape(-1, group)
    num_seen = np.count_nonzero(known, axis=1)
    if not num_seen.any():
        return np.ones((group, 1, k // group), np.float32)
    mean = known.sum() / num_seen.sum()
    of_group = np.where(num_seen > 0, known.sum(axis=1) / np.maximum(num_seen, 1), mean)
    filled = np.where(known > 0, known, of_group[:, None])
    relative = np.maximum(filled / filled.mean(), np.finfo(np.float32).eps)
    return np.ascontiguousarray(relative.astype(np.float32).T)[:, None, :]


def _block(unit: F32, counts: F32) -> Block:
    """`unit` (rows, K): weights whose rows' largest magnitudes are about 1, or rows of zeros."""
    group = len(counts)
    squares = unit * unit
    squares += squares.mean(axis=1, keepdims=True)
    squares += np.float32(1e-20)
    v = _columns(np.sqrt(squares, out=squares), group).reshape(group, len(unit), -1)
    v *= counts
    return Block(_columns(unit, group), v.reshape(group, -1))


def _columns(x: NDArray[np.generic], group: int) -> F32:
    """(rows, K) as (group, rows · K / group) float32."""
    return np.ascontiguousarray(x.reshape(-1, group).T, dtype=np.float32)


def _flat(x: NDArray[np.floating]) -> F32:
    return x.astype(np.float32).reshape(-1)
