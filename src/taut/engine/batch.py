"""One step's work, as plain arrays: a ragged concatenation of sequences, no padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Batch:
    """T tokens of S sequences, R rows wanted.

    ids        (T,)    token ids, sequence after sequence
    positions  (T,)    absolute position of each token in its sequence
    starts     (S+1,)  sequence s owns tokens starts[s]:starts[s+1]
    context    (S,)    tokens of the sequence in the KV cache after this step (its last position + 1)
    tables     (S, B)  KV block ids, enough for `context`; unused entries are 0. (S, 0) for encoders
    rows       (R,)    token indices whose output rows (logits) are wanted, increasing
    types      (T,)    token type ids (encoders), zeros for others
    """

    ids: Ints
    positions: Ints
    starts: Ints
    context: Ints
    tables: Ints
    rows: Ints
    types: Ints

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_sequences(self) -> int:
        return len(self.context)

    @property
    def num_rows(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Part:
    """One sequence's share of a step: `tokens` at absolute positions from `first` on; `blocks` is its block list (empty for encoders).
    `wants_row` asks for the output row of its last token, `all_rows` of every token."""

    tokens: Sequence[int]
    first: int = 0
    blocks: Sequence[int] = ()
    wants_row: bool = True
    all_rows: bool = False


def concatenate(parts: Sequence[Part]) -> Batch:
    """The batch of some sequences' parts, in order."""
    lengths = [len(part.tokens) for part in parts]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    tables = np.zeros((len(parts), max((len(part.blocks) for part in parts), default=0)), np.int32)
    rows: list[int] = []
    for index, part in enumerate(parts):
        tables[index, : len(part.blocks)] = part.blocks
        end = int(starts[index + 1])
        rows += range(int(starts[index]), end) if part.all_rows else [end - 1] if part.wants_row else []
    total = int(starts[-1])
    return Batch(
        ids=np.fromiter((token for part in parts for token in part.tokens), np.int32, total),
        positions=np.fromiter((part.first + i for part in parts for i in range(len(part.tokens))), np.int32, total),
        starts=starts,
        context=np.array([part.first + length for part, length in zip(parts, lengths, strict=True)], np.int32),
        tables=tables,
        rows=np.array(rows, np.int32),
        types=np.zeros(total, np.int32),
    )
