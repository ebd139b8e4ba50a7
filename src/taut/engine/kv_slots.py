"""Slots of the KV cache: how the keys, or the values, of 32 tokens of one head are kept. The specification of the native kernels.

A slot is its numbers, padded to 128 bytes, and what they are scaled by; for d = head_dim:
    fp32   K (d, 32) or V (32, d) float32
    bf16   K (d/2, 32, 2) or V (32/2, d, 2) bfloat16, rounded to nearest even
    int8   K (d/4, 32, 4) or V (32/4, d, 4) int8, then 32 float32 scales; x ~ q * scale per token and head
    int4   V (32, G, 16) uint8 for G groups of 32 channels (the last one may be short): byte j holds channels j (low bits) and j + 16 of a
           token's group; then (G, 2, 32) float16, scale and minimum; x ~ q * scale + minimum per token, head and group
Interleaved by two or four, so that a dot-product instruction takes several inputs of one token (K) or several tokens of one output (V) at
once. What is not finite reads as NaN (bf16 and fp32: as it is), and so does a group beyond float16: a request fails rather than err.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.quant.schemes.int8 import round_up

Kind = Literal["fp32", "bf16", "int8", "int4"]
KINDS: tuple[Kind, ...] = ("fp32", "bf16", "int8", "int4")  # in the order of the native core's KvType
BLOCK_TOKENS = 32
ALIGN = 128
GROUP = 32  # channels that share a scale and a minimum
STEPS = 15  # of four bits
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
_NUMBERS: dict[Kind, tuple[Any, int]] = {"fp32": (np.float32, 1), "bf16": (ml_dtypes.bfloat16, 2), "int8": (np.int8, 4)}


@dataclass(frozen=True)
class Slot:
    """Keys (`is_key`) or values of one head and block. `raw` is a slot's bytes wherever it is taken."""

    kind: Kind
    is_key: bool
    head_dim: int

    @property
    def groups(self) -> int:
        return -(-self.head_dim // GROUP)

    @property
    def data_bytes(self) -> int:
        """Bytes of the numbers, scales apart."""
        if self.kind == "int4":
            return BLOCK_TOKENS * self.groups * GROUP // 2
        return round_up(BLOCK_TOKENS * self.head_dim * np.dtype(_NUMBERS[self.kind][0]).itemsize, ALIGN)

    @property
    def nbytes(self) -> int:
        scales = {"int8": BLOCK_TOKENS * 4, "int4": self.groups * 2 * BLOCK_TOKENS * 2}
        return self.data_bytes + scales.get(self.kind, 0)

    def write(self, raw: Bytes, token: int, x: Floats) -> None:
        """Store x (head_dim,) as the block's token `token`."""
        if self.kind == "int4":
            data, params = self._nibbles(raw)
            data[token], params[:, :, token] = quantize_groups(x)
            return
        data = self._data(raw)
        if self.kind == "int8":
            x, self._scales(raw)[token] = quantize_head(x)  # type: ignore[assignment]
        elif self.kind == "bf16":
            x = x.astype(ml_dtypes.bfloat16)
        if self.is_key:
            data[:, token] = x.reshape(len(data), -1)
        else:
            data[token // data.shape[2], :, token % data.shape[2]] = x

    def read(self, raw: Bytes) -> Floats:
        """(32, head_dim), as the kernels take them."""
        if self.kind == "int4":
            return self._read_nibbles(raw)
        data = self._data(raw)
        rows = data.transpose(1, 0, 2) if self.is_key else data.transpose(0, 2, 1)
        out: Floats = rows.reshape(BLOCK_TOKENS, self.head_dim).astype(np.float32)
        return out * self._scales(raw)[:, None] if self.kind == "int8" else out

    def _data(self, raw: Bytes) -> NDArray[Any]:
        dtype, together = _NUMBERS[self.kind]
        across, along = (self.head_dim, BLOCK_TOKENS) if self.is_key else (BLOCK_TOKENS, self.head_dim)
        numbers = raw[: across * along * np.dtype(dtype).itemsize].view(dtype)
        shaped: NDArray[Any] = numbers.reshape(across // together, along, together)
        return shaped

    def _scales(self, raw: Bytes) -> Floats:
        return raw[self.data_bytes :].view(np.float32)

    def _nibbles(self, raw: Bytes) -> tuple[Bytes, NDArray[np.float16]]:
        """Views (32, groups, 16) of the bytes and (groups, 2, 32) of scales and minima."""
        data = raw[: self.data_bytes].reshape(BLOCK_TOKENS, self.groups, GROUP // 2)
        return data, raw[self.data_bytes :].view(np.float16).reshape(self.groups, 2, BLOCK_TOKENS)

    def _read_nibbles(self, raw: Bytes) -> Floats:
        data, params = self._nibbles(raw)
        q = np.concatenate([data & 15, data >> 4], axis=2).astype(np.float32)
        scale, minimum = params.astype(np.float32).transpose(1, 2, 0)[..., None]  # (32, groups, 1) each
        out: Floats = (q * scale + minimum).reshape(BLOCK_TOKENS, -1)[:, : self.head_dim]  # the product is exact
        return out


def quantize_head(x: Floats) -> tuple[NDArray[np.int8], np.float32]:
    """One head's row: q in [-127, 127] and scale = absmax / 127; a non-finite row gets scale NaN."""
    absmax = np.abs(x).max()
    if not np.isfinite(absmax):
        return np.zeros(x.shape, np.int8), np.float32(np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / absmax
    if not np.isfinite(inverse):
        return np.zeros(x.shape, np.int8), np.float32(0)
    return np.clip(np.rint(x * inverse), -127, 127).astype(np.int8), np.float32(absmax / np.float32(127))


def quantize_groups(x: Floats) -> tuple[Bytes, NDArray[np.float16]]:
    """One head's row in groups of 32: bytes (groups, 16) of two channels each, and (groups, 2) of scale and minimum.

    minimum = float16(min), scale = float16((max - minimum) / 15), q = clip(rint((x - minimum) / scale), 0, 15).
    """
    groups = -(-len(x) // GROUP)
    data, params = np.zeros((groups, GROUP // 2), np.uint8), np.full((groups, 2), np.nan, np.float16)
    for index in range(groups):
        own = x[index * GROUP : (index + 1) * GROUP].astype(np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            minimum = (own.min() + np.float32(0)).astype(np.float16)  # a zero loses its sign
            step = (own.max() - minimum.astype(np.float32)) / np.float32(STEPS)
            scale = np.maximum(step, np.float32(0)).astype(np.float16)
        if not (np.isfinite(own).all() and np.isfinite(minimum) and np.isfinite(scale)):
            continue
        params[index] = scale, minimum
        if scale > 0:
            inverse = np.float32(1) / scale.astype(np.float32)
            q = np.zeros(GROUP, np.uint8)
            q[: len(own)] = np.rint(np.clip((own - minimum.astype(np.float32)) * inverse, 0, STEPS))
            data[index] = q[: GROUP // 2] | q[GROUP // 2 :] << 4
    return data, params
