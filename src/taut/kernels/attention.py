"""The attention policy: over how many keys the softmax of a row is taken at once.

All policies are one kernel. Keys are cut by absolute position into chunks of `softmax_keys`; a chunk's scores are materialised, its softmax is
plain, and chunks are joined as flash attention joins its tiles (csrc/kernels/attention_tile.h). So a row that sees one chunk alone gets plain
attention, and the choice never depends on how a sequence was cut into steps.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """`softmax_keys`: keys of a chunk, a multiple of 32; 0: all keys of the row."""

    softmax_keys: int
    reason: str


POLICIES = {
    "auto": Policy(512, "plain softmax up to 512 keys, longer contexts join chunks of 512: the fastest measured (docs/log.md)"),
    "flash": Policy(32, "online softmax from tile to tile of 32 keys, as asked; scores never leave the L1 cache"),
    "plain": Policy(0, "one softmax over all keys, as asked; scores of a call's queries are held for the whole context"),
}
