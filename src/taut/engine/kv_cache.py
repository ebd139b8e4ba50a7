"""The paged KV cache: its geometry, its memory, and how the reference reads and writes it. Which block belongs to whom is the scheduler's.

A block holds 32 tokens of all layers, contiguously: [layer][K | V][kv_head] slots, each 128-byte aligned. A slot is, for d = head_dim:
    int8   K (d/4, 32, 4) or V (32/4, d, 4) int8 padded to 128 bytes, then 32 float32 scales; x ~ q * scale per token and head
    fp32   K (d, 32) or V (32, d) float32
The interleaving by four lets a dot-product instruction take four inputs of one token (K) or four tokens of one output (V) at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taut.quant.schemes.int8 import round_up

Format = Literal["int8", "fp32"]
BLOCK_TOKENS = 32
ALIGN = 128
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class KVLayout:
    """Geometry of the cache of one model."""

    layers: int
    kv_heads: int
    head_dim: int
    format: Format = "int8"

    @property
    def data_bytes(self) -> int:
        """Bytes of a slot's numbers, scales apart."""
        return round_up(BLOCK_TOKENS * self.head_dim * (1 if self.format == "int8" else 4), ALIGN)

    @property
    def slot_bytes(self) -> int:
        return self.data_bytes + (BLOCK_TOKENS * 4 if self.format == "int8" else 0)

    @property
    def block_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.slot_bytes

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / BLOCK_TOKENS

    def slot_offset(self, layer: int, part: int, head: int) -> int:
        """Byte offset in a block of the slot of keys (part 0) or values (part 1) of one head."""
        return ((layer * 2 + part) * self.kv_heads + head) * self.slot_bytes


def blocks_for(num_tokens: int) -> int:
    """Blocks that `num_tokens` tokens of one sequence take."""
    return -(-num_tokens // BLOCK_TOKENS)


class KVPool:
    """The memory of `num_blocks` blocks. `memory` is (num_blocks * block_bytes,) uint8 at an address that is a multiple of 128;
    it is reserved at once and committed by the operating system when a block is first written."""

    def __init__(self, layout: KVLayout, num_blocks: int, allocate: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.memory = (allocate or aligned_bytes)(layout.block_bytes * num_blocks)
        assert self.address % ALIGN == 0

    @property
    def address(self) -> int:
        return int(self.memory.ctypes.data)

    def write(self, layer: int, table: NDArray[Any], positions: NDArray[Any], k: Floats, v: Floats) -> None:
        """Store keys and values (tokens, kv_heads, head_dim) of one sequence at `positions`, in the pool's format."""
        for index, position in enumerate(positions):
            block, slot_token = int(table[position // BLOCK_TOKENS]), int(position % BLOCK_TOKENS)
            for head in range(self.layout.kv_heads):
                for part, x in enumerate((k, v)):
                    data, scales = self._slot(block, layer, part, head)
                    row = data[:, slot_token] if part == 0 else data[slot_token]
                    if scales is None:
                        row[...] = x[index, head]
                    else:
                        row[...], scales[slot_token] = _quantize(x[index, head])
                        self._store(block, layer, part, head, data)

    def read(self, layer: int, table: NDArray[Any], length: int) -> tuple[Floats, Floats]:
        """Keys and values (length, kv_heads, head_dim) of one sequence as float32."""
        out = np.empty((2, blocks_for(length) * BLOCK_TOKENS, self.layout.kv_heads, self.layout.head_dim), np.float32)
        for index in range(blocks_for(length)):
            own = slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
            for head in range(self.layout.kv_heads):
                for part in (0, 1):
                    data, scales = self._slot(int(table[index]), layer, part, head)
                    rows = data.T if part == 0 else data
                    out[part, own, head] = rows if scales is None else rows * scales[:, None]
        return out[0, :length], out[1, :length]

    def _bytes(self, block: int, layer: int, part: int, head: int) -> NDArray[np.uint8]:
        begin = block * self.layout.block_bytes + self.layout.slot_offset(layer, part, head)
        return self.memory[begin : begin + self.layout.slot_bytes]

    def _slot(self, block: int, layer: int, part: int, head: int) -> tuple[NDArray[Any], Floats | None]:
        """K as (head_dim, 32) or V as (32, head_dim): a view of fp32 numbers, or a copy of int8 ones with a view of their scales."""
        raw, d = self._bytes(block, layer, part, head), self.layout.head_dim
        shape = (d, BLOCK_TOKENS) if part == 0 else (BLOCK_TOKENS, d)
        if self.layout.format == "fp32":
            return raw[: 4 * d * BLOCK_TOKENS].view(np.float32).reshape(shape), None
        quads = raw[: d * BLOCK_TOKENS].view(np.int8).reshape(shape[0] // 4, shape[1], 4)
        return quads.transpose(0, 2, 1).reshape(shape).copy(), raw[self.layout.data_bytes :].view(np.float32)

    def _store(self, block: int, layer: int, part: int, head: int, data: NDArray[Any]) -> None:
        raw = self._bytes(block, layer, part, head)
        quads = data.reshape(data.shape[0] // 4, 4, data.shape[1]).transpose(0, 2, 1)
        raw[: data.size].view(np.int8)[...] = quads.reshape(-1)


def _quantize(x: Floats) -> tuple[NDArray[np.int8], np.float32]:
    """One head's row: q in [-127, 127] and scale = absmax / 127; a non-finite row gets scale NaN."""
    absmax = np.abs(x).max()
    if not np.isfinite(absmax):
        return np.zeros(x.shape, np.int8), np.float32(np.nan)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(127) / absmax
    if not np.isfinite(inverse):
        return np.zeros(x.shape, np.int8), np.float32(0)
    return np.clip(np.rint(x * inverse), -127, 127).astype(np.int8), np.float32(absmax / np.float32(127))


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeroed uint8 memory whose address is a multiple of 4096, reserved by the operating system and committed on first use."""
    import mmap

    region = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(region, dtype=np.uint8)[:size]
