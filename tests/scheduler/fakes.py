"""A model of integers: the next token is a function of the sequence's tokens as its cache holds them, so that a wrong block, position
or chunk border changes the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from taut.engine.batch import Batch
from taut.engine.kv_cache import BLOCK_TOKENS
from taut.engine.sampler import RowChoice
from taut.errors import NumericalError
from taut.scheduler.blocks import BlockPool
from taut.scheduler.loop import Loop
from taut.scheduler.scheduler import Limits, Scheduler

VOCAB = 1000


def next_token(tokens: Sequence[int], seed: int) -> int:
    digest = hashlib.sha256(repr((list(map(int, tokens)), seed)).encode()).digest()
    return 2 + int.from_bytes(digest[:4], "little") % (VOCAB - 2)


class FakeEngine:
    """Keeps tokens in the blocks where a real engine keeps keys; reads the whole context back from them."""

    kv = None

    def __init__(self, num_blocks: int) -> None:
        self.cache = np.full((num_blocks, BLOCK_TOKENS), -1, np.int64)
        self.largest_step = 0
        self.poison: int | None = None  # a step with this token raises
        self.nan: int | None = None  # a sequence with this token gets a numerical error

    def guards(self) -> dict[str, int]:
        return {}

    def run(self, batch: Batch, choices: Sequence[RowChoice]) -> list[int | NumericalError]:
        self.largest_step = max(self.largest_step, batch.num_tokens)
        if self.poison is not None and self.poison in batch.ids:
            raise RuntimeError("poisoned")
        out: list[int | NumericalError] = []
        sampling = iter(choices)
        for s in range(batch.num_sequences):
            own = slice(int(batch.starts[s]), int(batch.starts[s + 1]))
            for token, position in zip(batch.ids[own], batch.positions[own], strict=True):
                self.cache[batch.tables[s, position // BLOCK_TOKENS], position % BLOCK_TOKENS] = token
            if own.stop - 1 in batch.rows:
                n = int(batch.context[s])
                context = self.cache[batch.tables[s]].reshape(-1)[:n]
                assert (context >= 0).all(), "read a slot that was never written"
                failed = self.nan is not None and self.nan in context
                out.append(NumericalError("nan") if failed else next_token(context, next(sampling).seed))
        return out

    def embed(self, batch: Batch) -> list[np.ndarray]:
        return [np.full(2, batch.ids[a:b].sum(), np.float32) for a, b in zip(batch.starts[:-1], batch.starts[1:], strict=True)]


class FakeStream:
    """Each token is the text <id>."""

    def push(self, token_id: int) -> str:
        return f"<{token_id}>"

    def flush(self) -> str:
        return ""


def fake_loop(
    num_blocks: int = 64, *, reuse: bool = True, end_ids: frozenset[int] = frozenset(), **limits: int
) -> tuple[Loop, FakeEngine]:
    engine = FakeEngine(num_blocks)
    scheduler = Scheduler(Limits(**{"context_len": 4096, **limits}), BlockPool(num_blocks, reuse=reuse))
    return Loop(engine, scheduler, FakeStream, end_ids, VOCAB), engine  # type: ignore[arg-type]
