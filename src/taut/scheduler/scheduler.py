"""Scheduler: a pure state machine that says who runs in the next step. No clock, no tensors, no I/O.

First come, first served. Each step gives one token to every sequence that is decoding, then fills the token budget with prefill
chunks in order of arrival. When the cache is full the youngest running sequence is put back to the head of the queue; it is computed
again later, and since a token's bits depend on nothing but its sequence, its text is the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from taut.engine.kv_cache import BLOCK_TOKENS, blocks_for
from taut.errors import ContextLengthError, MemoryBudgetError, OverloadedError, RequestError
from taut.scheduler.blocks import BlockPool
from taut.scheduler.request import EmbedRequest
from taut.scheduler.sequence import Sequence
from taut.units import counted


@dataclass(frozen=True)
class Limits:
    """`step_tokens`: most tokens of one step; `chunk_tokens`: most tokens of one sequence in it; `running`: most sequences at once;
    `waiting` and `waiting_tokens` bound the queue."""

    context_len: int
    step_tokens: int = 512
    chunk_tokens: int = 256
    running: int = 16
    waiting: int = 1024
    waiting_tokens: int = 1_000_000


@dataclass(frozen=True)
class Chunk:
    """The next `count` tokens of a sequence."""

    sequence: Sequence
    count: int

    @property
    def samples(self) -> bool:
        """Whether this chunk ends at the newest token, so that its last row gives the next one."""
        return self.count == self.sequence.num_pending


class Scheduler:
    """Owns the queue, the running set and the block pool."""

    def __init__(self, limits: Limits, pool: BlockPool) -> None:
        self.limits, self.pool = limits, pool
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []  # in order of arrival
        self.embeds: deque[EmbedRequest] = deque()
        self.num_preemptions = 0

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence, or raise: RequestError, MemoryBudgetError (could never run), OverloadedError (queue full)."""
        request = sequence.request
        self._check_length(len(request.prompt), reserve=1)
        if blocks_for(min(len(request.prompt) + request.max_tokens, self.limits.context_len)) > self.pool.num_blocks:
            raise MemoryBudgetError(
                f"the request needs up to {len(request.prompt) + request.max_tokens:,} tokens of KV cache, all of it holds "
                f"{self.pool.num_blocks * BLOCK_TOKENS:,}; shorten the prompt, lower max_tokens or raise --memory"
            )
        self._check_queue(len(request.prompt))
        self.waiting.append(sequence)

    def submit_embed(self, request: EmbedRequest) -> None:
        self._check_length(len(request.prompt), reserve=0)
        self._check_queue(len(request.prompt))
        self.embeds.append(request)

    def _check_length(self, prompt_len: int, reserve: int) -> None:
        if prompt_len + reserve > self.limits.context_len:
            what, room, param = ("prompt", " and an answer", "messages") if reserve else ("text", "", "input")
            raise ContextLengthError(
                f"the {what} has {counted(prompt_len, 'token')}; at most {self.limits.context_len - reserve:,}{room} fit; shorten it",
                param=param,
            )

    def _check_queue(self, tokens: int) -> None:
        if tokens > self.limits.waiting_tokens:
            raise RequestError(
                f"the prompt has {tokens} tokens; the queue takes at most {self.limits.waiting_tokens} of all requests together"
            )
        queued = len(self.waiting) + len(self.embeds)
        queued_tokens = sum(len(s.tokens) for s in self.waiting) + sum(len(e.prompt) for e in self.embeds)
        if queued >= self.limits.waiting or queued_tokens + tokens > self.limits.waiting_tokens:
            raise OverloadedError(
                f"the queue is full ({counted(queued, 'request')}, {counted(queued_tokens, 'token')}); retry later"
            )

    def next_chunks(self) -> list[Chunk]:
        """The generation work of the next step; empty when there is none. Blocks for it are taken."""
        budget = self.limits.step_tokens
        chunks: list[Chunk] = []
        preemptions = self.num_preemptions
        for sequence in [s for s in self.running if s.is_decoding]:
            if sequence in self.running and self._make_room(sequence, sequence.computed + 1):
                chunks.append(Chunk(sequence, 1))
                budget -= 1
        for sequence in self._prefilling(preemptions):
            count = min(sequence.num_pending, self.limits.chunk_tokens, budget)
            if count <= 0 or not self._make_room(sequence, sequence.computed + count):
                break
            chunks.append(Chunk(sequence, count))
            budget -= count
        return [chunk for chunk in chunks if chunk.sequence in self.running]

    def _prefilling(self, preemptions: int) -> Iterator[Sequence]:
        """Running sequences still in prefill, then waiting ones as they are admitted, in order of arrival. `preemptions` is the count
        when the step began."""
        for sequence in [s for s in self.running if not s.is_decoding]:
            if sequence in self.running:
                yield sequence
        # After a preemption nobody is admitted in this step: the preempted one would take back what its elder needs.
        while self.waiting and len(self.running) < self.limits.running and self.num_preemptions == preemptions:
            sequence = self.waiting[0]
            sequence.blocks = self.pool.match(sequence.tokens)
            sequence.computed = sequence.published = len(sequence.blocks) * BLOCK_TOKENS
            # Admit only what fits beside the others as they stand; it would else be preempted at once.
            if sequence.blocks_missing(len(sequence.tokens) + 1) > self.pool.num_available:
                self._give_back(sequence)
                return
            if not sequence.preemptions:
                sequence.cached = sequence.computed
            self.running.append(self.waiting.popleft())
            yield sequence

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Take the blocks that `num_tokens` tokens of `sequence` need, preempting younger sequences; False when it was itself preempted."""
        missing = sequence.blocks_missing(num_tokens)
        while missing > self.pool.num_available:
            youngest = self.running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        sequence.blocks += self.pool.take(missing)
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.computed = sequence.published = 0

    def computed(self, chunk: Chunk) -> None:
        """A chunk has run: its tokens are in the cache, and full blocks of it can be reused by others."""
        sequence = chunk.sequence
        sequence.computed += chunk.count
        full = sequence.computed // BLOCK_TOKENS
        if full * BLOCK_TOKENS > sequence.published:
            self.pool.publish(sequence.blocks, sequence.tokens, sequence.published // BLOCK_TOKENS, full * BLOCK_TOKENS)
            sequence.published = full * BLOCK_TOKENS

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and release its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._give_back(sequence)

    def next_embeds(self) -> list[EmbedRequest]:
        """Whole sequences of an encoder up to the token budget, in order of arrival; at least one when any waits."""
        chosen: list[EmbedRequest] = []
        budget = self.limits.step_tokens
        while self.embeds and (not chosen or len(self.embeds[0].prompt) <= budget):
            chosen.append(self.embeds.popleft())
            budget -= len(chosen[-1].prompt)
        return chosen

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running or self.embeds)

    def check_integrity(self) -> None:
        """Assert the invariants: no sequence twice, waiting ones own nothing, the pool's books agree, work can always go on."""
        everyone = [*self.waiting, *self.running]
        assert len({id(s) for s in everyone}) == len(everyone)
        assert all(not s.blocks and not s.computed for s in self.waiting)
        assert all(0 <= s.computed <= len(s.tokens) <= self.limits.context_len for s in self.running)
        assert all(blocks_for(s.computed) <= len(s.blocks) for s in self.running)
        assert len(self.running) <= self.limits.running
        self.pool.check_integrity([s.blocks for s in self.running])
