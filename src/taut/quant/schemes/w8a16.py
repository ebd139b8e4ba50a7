"""w8a16: int8 weights, one scale per output channel, multiplied by activations that stay floats.

    weights  those of int8.py by output channel
    y        act(fma(sum, scale, bias)), without bias act(sum * scale); the sum of x * float(q) over K in the four segments of a float
             linear, each a sequence of fused multiply-adds in fp32: (s0 + s1) + (s2 + s3)

The quarter of fp32's bytes that decode reads, and no activation is rounded. Pure arrays; the specification that the native kernels
match bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from taut.quant.schemes import int8
from taut.quant.schemes.int8 import F32, I8, PANEL, Quantized


def packed_shape(n: int, k: int) -> tuple[int, int, int]:
    """Shape of the packed weights of an (N, K) matrix: (panels, K, 64 columns)."""
    return int8.round_up(n, PANEL) // PANEL, k, PANEL


def pack(w: Quantized) -> tuple[I8, F32]:
    """Packs for the kernels: (int8 of packed_shape, scale (N padded to 64,)), zeros beyond N."""
    n, k = w.q.shape
    panels = packed_shape(n, k)[0]
    rows: I8 = np.zeros((panels * PANEL, k), np.int8)
    rows[:n] = w.q
    scale: F32 = np.zeros(panels * PANEL, np.float32)
    scale[:n] = w.scale
    return np.ascontiguousarray(rows.reshape(panels, PANEL, k).transpose(0, 2, 1)), scale


def unpack(data: I8, scale: F32, n: int) -> Quantized:
    """The inverse of `pack`."""
    panels, k, _ = data.shape
    return Quantized(np.ascontiguousarray(data.transpose(0, 2, 1)).reshape(panels * PANEL, k)[:n], scale[:n])


def linear_reference(x: F32, w: Quantized, segments: Sequence[int], bias: F32 | None = None) -> F32:
    """What every kernel computes, without an activation: x (M, K), segments five cuts of K, bias (N,). Returns (M, N) float32."""
    sums = []
    for begin, end in itertools.pairwise(segments):
        s: F32 = np.zeros((len(x), len(w.q)), np.float32)
        for k in range(begin, end):
            s = int8.fma32(x[:, k, None], w.q[None, :, k].astype(np.float32), s)
        sums.append(s)
    total: F32 = (sums[0] + sums[1]) + (sums[2] + sums[3])
    return total * w.scale[None] if bias is None else int8.fma32(total, w.scale[None], bias[None])
