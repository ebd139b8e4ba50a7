"""One step's work, as plain arrays: a ragged concatenation of sequences, no padding."""

from __future__ import annotations

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
