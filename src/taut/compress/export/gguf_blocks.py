"""Blocks of 32 weights as ggml lays them out, from weights that are quantized already.

    Q8_0   d float16, 32 int8 q                    w = d q
    Q4_0   d float16, 16 bytes of nibbles          w = d (u - 8)
    Q4_1   d, m float16, 16 bytes of nibbles       w = d u + m
    nibbles: byte j holds u[j] in its low bits, u[j + 16] in its high ones

Arrays only. Format: ggml's block_q8_0, block_q4_0 and block_q4_1 (ggml-common.h).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taut.errors import UsageError
from taut.quant.algorithms.rtn import is_symmetric
from taut.quant.schemes import int4, int8

BLOCK = 32
BLOCK_BYTES = {"Q8_0": 34, "Q4_0": 18, "Q4_1": 20}

U8 = NDArray[np.uint8]


def kind_of(weight: int8.Quantized | int4.Quantized, name: str) -> str:
    """The type that holds `weight`. UsageError where its rows or groups are not whole blocks."""
    k = (weight.q if isinstance(weight, int8.Quantized) else weight.u).shape[1]
    if k % BLOCK or weight.group % BLOCK:
        raise UsageError(
            f"{name}: rows of {k} inputs in groups of {weight.group or k} do not fill GGUF's blocks of {BLOCK}; give it fp16 (--pin)"
        )
    if isinstance(weight, int8.Quantized):
        return "Q8_0"
    return "Q4_0" if is_symmetric(weight) else "Q4_1"


def blocks(weight: int8.Quantized | int4.Quantized, name: str) -> U8:
    """(N, K / 32 · bytes of a block). A scale of a row or a longer group stands in each of its blocks."""
    if isinstance(weight, int8.Quantized):
        return _q8_0(weight, name)
    n, k = weight.u.shape
    d = _half(weight.scale.astype(np.float32) * weight.column[:, None], k, name)
    parts = [d]
    if not is_symmetric(weight):
        parts.append(_half(weight.offset.astype(np.float32) * (-int4.OFFSET * weight.column[:, None]), k, name))
    halves = weight.u.reshape(n, k // BLOCK, 2, BLOCK // 2)
    nibbles = halves[:, :, 0] | halves[:, :, 1] << 4
    return _joined([*parts, nibbles])


def _q8_0(weight: int8.Quantized, name: str) -> U8:
    """Codes are kept, but where float16 holds the scale too coarsely: there they move to the nearest."""
    n, k = weight.q.shape
    given = _repeated(weight.scale.reshape(n, -1), k)
    d = _half(weight.scale.reshape(n, -1), k, name)
    short = given > d.astype(np.float32) * np.float32(1 + 2**-9)  # the largest codes would pass 127
    d = np.where(short, np.nextafter(d, np.float16(np.inf)), d)
    kept = d.astype(np.float32)
    ratio = np.divide(given, kept, out=np.zeros_like(given), where=kept != 0)
    codes = np.rint(weight.q.reshape(n, k // BLOCK, BLOCK) * ratio[:, :, None])
    return _joined([d, np.clip(codes, -int8.QMAX, int8.QMAX).astype(np.int8)])


def _repeated(scale: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    """(N, groups) as (N, K / 32)."""
    return np.repeat(scale, k // BLOCK // scale.shape[1], axis=1)


def _half(scale: NDArray[np.float32], k: int, name: str) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = _repeated(scale, k).astype(np.float16)
    if not np.isfinite(half).all():
        raise UsageError(
            f"{name}: a scale of {np.abs(scale).max():.3g} is beyond float16, which GGUF's blocks hold; give it fp32 (--pin)"
        )
    return half


def _joined(parts: list[NDArray[np.generic]]) -> U8:
    n, count = parts[0].shape[:2]
    raw = [np.ascontiguousarray(part).view(np.uint8).reshape(n, count, -1) for part in parts]
    return np.concatenate(raw, axis=2).reshape(n, -1)
