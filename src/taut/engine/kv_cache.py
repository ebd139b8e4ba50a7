"""The paged KV cache: its geometry, its memory, and how the reference reads and writes it. Which block belongs to whom is the scheduler's.

A block holds 32 tokens of all layers, contiguously: [layer][K of every head | V of every head] slots, each 128-byte aligned
(engine/kv_slots.py says what a slot holds). Formats, of keys and values:
    fp32, bf16, int8   both alike
    k8v4               keys of int8, values of four bits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taut.engine.kv_slots import ALIGN, BLOCK_TOKENS, Floats, Kind, Slot

__all__ = ["BLOCK_TOKENS", "Floats", "Format", "KVLayout", "KVPool", "aligned_bytes", "blocks_for"]

Format = Literal["fp32", "bf16", "int8", "k8v4"]
KINDS: dict[Format, tuple[Kind, Kind]] = {
    "fp32": ("fp32", "fp32"),
    "bf16": ("bf16", "bf16"),
    "int8": ("int8", "int8"),
    "k8v4": ("int8", "int4"),
}


@dataclass(frozen=True)
class KVLayout:
    """Geometry of the cache of one model."""

    layers: int
    kv_heads: int
    head_dim: int
    format: Format = "int8"

    @property
    def slots(self) -> tuple[Slot, Slot]:
        """Of keys and of values."""
        key, value = KINDS[self.format]
        return Slot(key, True, self.head_dim), Slot(value, False, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return self.layers * self.kv_heads * sum(slot.nbytes for slot in self.slots)

    @property
    def bytes_per_token(self) -> float:
        return self.block_bytes / BLOCK_TOKENS

    def slot_offset(self, layer: int, part: int, head: int) -> int:
        """Byte offset in a block of the slot of keys (part 0) or values (part 1) of one head."""
        keys, values = self.slots
        before = layer * (keys.nbytes + values.nbytes) + part * keys.nbytes
        return before * self.kv_heads + head * self.slots[part].nbytes


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
            block, token = int(table[position // BLOCK_TOKENS]), int(position % BLOCK_TOKENS)
            for part, x in enumerate((k, v)):
                for head in range(self.layout.kv_heads):
                    self.layout.slots[part].write(self._raw(block, layer, part, head), token, x[index, head])

    def read(self, layer: int, table: NDArray[Any], length: int) -> tuple[Floats, Floats]:
        """Keys and values (length, kv_heads, head_dim) of one sequence as float32."""
        out = np.empty((2, blocks_for(length) * BLOCK_TOKENS, self.layout.kv_heads, self.layout.head_dim), np.float32)
        for index in range(blocks_for(length)):
            own = slice(index * BLOCK_TOKENS, (index + 1) * BLOCK_TOKENS)
            for part, slot in enumerate(self.layout.slots):
                for head in range(self.layout.kv_heads):
                    out[part, own, head] = slot.read(self._raw(int(table[index]), layer, part, head))
        return out[0, :length], out[1, :length]

    def _raw(self, block: int, layer: int, part: int, head: int) -> NDArray[np.uint8]:
        begin = block * self.layout.block_bytes + self.layout.slot_offset(layer, part, head)
        return self.memory[begin : begin + self.layout.slots[part].nbytes]


def aligned_bytes(size: int) -> NDArray[np.uint8]:
    """Zeroed uint8 memory whose address is a multiple of 4096, reserved by the operating system and committed on first use."""
    import mmap

    region = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(region, dtype=np.uint8)[:size]
