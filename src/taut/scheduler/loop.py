"""Loop: turns requests into steps of the engine and steps into events. Its owner thread alone touches it.

Every accepted request gets exactly one FinishedEvent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from taut.engine.batch import Part, concatenate
from taut.engine.engine import Engine
from taut.engine.sampler import RowChoice
from taut.errors import RequestError
from taut.scheduler.request import EmbedRequest, Event, FinishedEvent, FinishReason, GenerateRequest, Request, TextEvent, Usage
from taut.scheduler.scheduler import Chunk, Scheduler
from taut.scheduler.sequence import Sequence
from taut.scheduler.text import StoppedText, TokenStream


@dataclass(frozen=True)
class LoopStats:
    """Gauges and counters at this moment."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    steps: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    preemptions: int
    guards: Mapping[str, int]  # what the engine's guards have counted, by kind


@dataclass
class _Live:
    """A request that has not ended: its scheduling state and its text. The sequence is None for an embedding."""

    sequence: Sequence | None
    text: StoppedText | None


class Loop:
    """`vocab_size` bounds prompt ids; `end_ids` are the model's own end tokens; `stream` makes an incremental detokenizer."""

    def __init__(
        self,
        engine: Engine,
        scheduler: Scheduler,
        stream: Callable[[], TokenStream] | None,
        end_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        self._engine, self._scheduler, self._stream = engine, scheduler, stream
        self._end_ids, self._vocab_size = end_ids, vocab_size
        self._live: dict[str, _Live] = {}
        self._pending: list[Event] = []
        self._steps = self._prompt_tokens = self._generated_tokens = self._cached_tokens = 0

    @property
    def max_queued(self) -> int:
        """Most requests that can wait together."""
        return self._scheduler.limits.waiting

    @property
    def max_queued_tokens(self) -> int:
        """Most prompt tokens that can wait together."""
        return self._scheduler.limits.waiting_tokens

    def submit(self, request: Request) -> None:
        """Accept a request, or raise and leave no trace."""
        if request.request_id in self._live:
            raise RequestError(f"a request with id {request.request_id!r} is still running", param="request_id")
        self._check_ids(request.prompt)
        if isinstance(request, EmbedRequest):
            self._scheduler.submit_embed(request)
            self._live[request.request_id] = _Live(None, None)
        else:
            assert self._stream is not None, "an encoder does not generate"
            seed = request.sampling.seed if request.sampling.seed is not None else secrets.randbits(63)
            sequence = Sequence(request, seed)
            self._scheduler.submit(sequence)
            self._live[request.request_id] = _Live(sequence, StoppedText(self._stream(), request.stop))

    def _check_ids(self, prompt: Seq[int]) -> None:
        if not prompt:
            raise RequestError("the prompt is empty; give at least one token", param="prompt")
        bad = next((token for token in prompt if not 0 <= token < self._vocab_size), None)
        if bad is not None:
            raise RequestError(f"token id {bad} is outside the vocabulary [0, {self._vocab_size})", param="prompt")

    def cancel(self, request_id: str) -> None:
        """End a request; its blocks are free at once. Unknown and ended ids are ignored."""
        if (live := self._live.get(request_id)) is None:
            return
        if live.sequence is None:
            self._scheduler.embeds = type(self._scheduler.embeds)(
                e for e in self._scheduler.embeds if e.request_id != request_id
            )
            del self._live[request_id]
            self._pending.append(FinishedEvent(request_id, "cancelled", Usage(0)))
        else:
            self._pending.append(self._finish(live.sequence, "cancelled"))

    @property
    def has_work(self) -> bool:
        return bool(self._pending) or self._scheduler.has_work

    def step(self) -> list[Event]:
        """One step of the engine, and everything that became known by it."""
        events, self._pending = self._pending, []
        if chunks := self._scheduler.next_chunks():
            self._steps += 1
            events += self._generate(chunks)
        elif embeds := self._scheduler.next_embeds():
            self._steps += 1
            events += self._embed(embeds)
        return events

    def rest(self) -> None:
        """Give the memory of activations back to the system until the next step."""
        self._engine.trim()

    def stats(self) -> LoopStats:
        scheduler = self._scheduler
        return LoopStats(
            len(scheduler.running), len(scheduler.waiting) + len(scheduler.embeds), scheduler.pool.num_owned, scheduler.pool.num_blocks,
            self._steps, self._prompt_tokens, self._generated_tokens, self._cached_tokens, scheduler.num_preemptions,
            self._engine.guards(),
        )  # fmt: skip

    def _generate(self, chunks: list[Chunk]) -> list[Event]:
        events: list[Event] = []
        for chunk, result in zip(chunks, self._run(chunks), strict=True):
            if isinstance(result, Exception):
                events.append(self._finish(chunk.sequence, "error", result))
                continue
            self._prompt_tokens += chunk.count if result is None or not chunk.sequence.is_decoding else 0
            self._scheduler.computed(chunk)
            if result is not None:
                events += self._append(chunk.sequence, result)
        return events

    def _run(self, chunks: list[Chunk]) -> list[int | Exception | None]:
        """For each chunk the sampled token, None when it does not reach its last token, or why it failed. When a step raises, its
        sequences are tried one by one, so that a bad one fails alone."""
        parts = [
            Part(s.tokens[s.computed : s.computed + chunk.count], s.computed, s.blocks, chunk.samples)
            for chunk in chunks
            for s in (chunk.sequence,)
        ]
        sampling = [_choice(chunk.sequence) for chunk in chunks if chunk.samples]
        try:
            tokens = iter(self._engine.run(concatenate(parts), sampling))
        except Exception as error:
            if len(chunks) == 1:
                return [error]
            return [result for chunk in chunks for result in self._run([chunk])]
        return [next(tokens) if chunk.samples else None for chunk in chunks]

    def _append(self, sequence: Sequence, token: int) -> list[Event]:
        """A sampled token joins its sequence; the events that follow from it."""
        request, live = sequence.request, self._live[sequence.request_id]
        assert live.text is not None
        sequence.tokens.append(token)
        self._generated_tokens += 1
        ends = token in request.stop_token_ids or (token in self._end_ids and not request.ignore_eos)
        text = "" if ends else live.text.push(token)
        full = sequence.num_generated >= request.max_tokens or len(sequence.tokens) >= self._scheduler.limits.context_len
        reason: FinishReason | None = "stop" if ends or live.text.stopped else "length" if full else None
        if reason is None:
            return [TextEvent(request.request_id, text, (token,))]
        text += live.text.flush()
        reason = "stop" if live.text.stopped else reason
        return [TextEvent(request.request_id, text, (token,)), self._finish(sequence, reason)]

    def _finish(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> FinishedEvent:
        usage = sequence.usage
        self._scheduler.finish(sequence)
        self._cached_tokens += usage.cached_tokens
        del self._live[sequence.request_id]
        return FinishedEvent(sequence.request_id, reason, usage, error)

    def _embed(self, requests: list[EmbedRequest]) -> list[Event]:
        results: Seq[object]
        try:
            results = self._engine.embed(concatenate([Part(request.prompt) for request in requests]))
        except Exception as error:
            if len(requests) > 1:
                return [event for request in requests for event in self._embed([request])]
            results = [error]
        events: list[Event] = []
        for request, result in zip(requests, results, strict=True):
            del self._live[request.request_id]
            self._prompt_tokens += len(request.prompt)
            usage = Usage(len(request.prompt))
            if isinstance(result, Exception):
                events.append(FinishedEvent(request.request_id, "error", usage, result))
            else:
                events.append(FinishedEvent(request.request_id, "stop", usage, embedding=result))  # type: ignore[arg-type]
        return events

    def check_integrity(self) -> None:
        """Assert the scheduler's invariants and that exactly its sequences are live."""
        self._scheduler.check_integrity()
        known = {s.request_id for s in (*self._scheduler.waiting, *self._scheduler.running)} | {
            e.request_id for e in self._scheduler.embeds
        }
        assert known == set(self._live)


def _choice(sequence: Sequence) -> RowChoice:
    s: GenerateRequest = sequence.request
    return RowChoice(
        s.sampling.temperature,
        s.sampling.top_k,
        s.sampling.top_p,
        s.sampling.min_p,
        sequence.seed,
        s.choice,
        len(sequence.tokens),
    )
