"""The Python interface: load a model, then chat, generate and embed with it.

model = taut.load("smollm2-135m")
print(model.chat([{"role": "user", "content": "What is a hash table?"}]).text)
for piece in model.generate("Once upon a time", stream=True):
    print(piece, end="")
vectors = taut.load("minilm").embed(["one sentence", "another"])
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint import receipt_file
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import BLOCK_TOKENS, blocks_for
from taut.engine.runtime import short_switches
from taut.errors import ContextLengthError, EngineStoppedError, RequestError
from taut.loading import Loaded, load_model
from taut.scheduler.request import (
    EmbedRequest,
    Event,
    FinishedEvent,
    FinishReason,
    GenerateRequest,
    Request,
    SamplingParams,
    TextEvent,
    Usage,
)
from taut.units import counted, show_bytes

EMBED_WINDOW = 256  # texts in flight at once: a long list must not fill the queue
Floats = NDArray[np.float32]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Completion:
    """A finished text. `seconds` is wall time, prompt included."""

    text: str
    finish_reason: FinishReason
    usage: Usage
    seconds: float


class Model:
    """A loaded model. Not thread-safe: one thread drives it, here or through the server's bridge."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._ids = itertools.count()
        self._mailboxes: dict[str, deque[Event]] = {}
        self.name = loaded.checkpoint.name
        self.kind: Literal["decoder", "encoder"] = loaded.built.kind
        self.tokenizer = loaded.checkpoint.tokenizer
        self.chat_template = loaded.checkpoint.chat_template
        self.generation_config = loaded.checkpoint.generation_config
        self.context_len = loaded.context_len
        self.embedding_dim = loaded.built.hidden_size if self.kind == "encoder" else None
        self.loop = loaded.loop
        self.engine = loaded.engine
        self.plan = loaded.plan

    def __repr__(self) -> str:
        return f"<taut.Model {self.name}: {self.summary()}>"

    @property
    def loaded(self) -> Loaded:
        """The parts of the model: checkpoint, graph, plan, weights, budget."""
        return self._loaded

    @functools.cached_property
    def receipt(self) -> dict[str, Any] | None:
        """An artefact's receipt (compress/receipt.py); None for a model that was not loaded from one."""
        checkpoint = self._loaded.checkpoint
        if (
            checkpoint.quantization is None
            or checkpoint.folder is None
            or not (checkpoint.folder / receipt_file.RECEIPT).exists()
        ):
            return None
        return receipt_file.read(checkpoint.folder)

    def encode_chat(self, messages: Messages) -> list[int]:
        """The token ids of a conversation with the model's chat template, up to where the assistant speaks."""
        self._need_decoder()
        if not isinstance(messages, (list, tuple)) or not messages:
            raise RequestError(
                'messages must be a list with at least one {"role": …, "content": …}; for plain text use generate',
                param="messages",
            )
        if bad := [
            m for m in messages if not isinstance(m, Mapping) or not isinstance(m.get("role"), str) or "content" not in m
        ]:
            raise RequestError(f"a message needs a role and a content, not {bad[0]!r}", param="messages")
        if self.chat_template is None:
            raise RequestError(f"{self.name} has no chat template; use generate with a plain prompt", param="messages")
        ids: list[int] = self._tokens().encode(self.chat_template.render([dict(m) for m in messages]), add_special=False)
        return ids

    def _tokens(self) -> Any:
        if self.tokenizer is None:
            raise RequestError(f"{self.name} has no tokenizer", param="prompt")
        return self.tokenizer

    def chat(
        self, messages: Messages, *, max_tokens: int | None = None, stop: Sequence[str] = (), **sampling: Any
    ) -> Completion:
        """The assistant's next turn. `sampling`: temperature, top_k, top_p, min_p, seed (SamplingParams); greedy by default."""
        return self._complete(self._request(self.encode_chat(messages), max_tokens, stop, sampling))

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = ...,
        stop: Sequence[str] = ...,
        stream: Literal[False] = ...,
        **sampling: Any,
    ) -> Completion: ...

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = ...,
        stop: Sequence[str] = ...,
        stream: Literal[True],
        **sampling: Any,
    ) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str | Sequence[int],
        *,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        stream: bool = False,
        **sampling: Any,
    ) -> Completion | Iterator[str]:
        """Continue `prompt` (text or token ids); with `stream` an iterator of text pieces, which may be abandoned at any time."""
        ids = self._tokens().encode(prompt) if isinstance(prompt, str) else _token_ids(prompt)
        request = self._request(ids, max_tokens, stop, sampling)
        return self._stream(request) if stream else self._complete(request)

    def stream_chat(
        self, messages: Messages, *, max_tokens: int | None = None, stop: Sequence[str] = (), **sampling: Any
    ) -> Iterator[str]:
        """The assistant's next turn, piece by piece."""
        return self._stream(self._request(self.encode_chat(messages), max_tokens, stop, sampling))

    def _request(
        self, ids: Sequence[int], max_tokens: int | None, stop: Sequence[str], sampling: Mapping[str, Any]
    ) -> GenerateRequest:
        self._need_decoder()
        if unknown := set(sampling) - set(SamplingParams.__dataclass_fields__):
            raise RequestError(
                f"unknown option {', '.join(sorted(unknown))}; accepted: {', '.join(SamplingParams.__dataclass_fields__)}"
            )
        room = max(1, self.context_len - len(ids))
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        wanted = room if max_tokens is None else max_tokens
        request = GenerateRequest(self._next_id(), tuple(ids), wanted, SamplingParams(**sampling), stops)
        return replace(request, max_tokens=min(wanted, room))

    def _need_decoder(self) -> None:
        if self.kind != "decoder":
            raise RequestError(f"{self.name} is an encoder: it embeds, it does not generate", param="model")

    def _next_id(self) -> str:
        return f"local-{next(self._ids)}"

    def _events(self, request: GenerateRequest) -> Iterator[Event]:
        """The request's events. Several streams may be open: whoever steps the loop leaves the others' events in their mailboxes."""
        mailbox = self._submit(request)
        try:
            while True:
                while not mailbox:
                    self._step()
                event = mailbox.popleft()
                yield event
                if isinstance(event, FinishedEvent):
                    return
        finally:
            self._leave([request.request_id])

    def _submit(self, request: Request) -> deque[Event]:
        self.loop.submit(request)
        return self._mailboxes.setdefault(request.request_id, deque())

    def _step(self) -> None:
        with short_switches():
            events = self.loop.step()
        for event in events:
            if (mailbox := self._mailboxes.get(event.request_id)) is not None:
                mailbox.append(event)

    def _leave(self, request_ids: Iterable[str]) -> None:
        """Nobody listens to these requests any more: those that still run are cancelled (the next step takes note)."""
        for request_id in request_ids:
            self._mailboxes.pop(request_id, None)
            if "loop" in self.__dict__:
                self.loop.cancel(request_id)

    def _stream(self, request: GenerateRequest) -> Iterator[str]:
        for event in self._events(request):
            if isinstance(event, FinishedEvent):
                if event.error is not None:
                    raise event.error
            elif event.text:
                yield event.text

    def _complete(self, request: GenerateRequest) -> Completion:
        begun, pieces = time.perf_counter(), []
        for event in self._events(request):
            if isinstance(event, TextEvent):
                pieces.append(event.text)
                continue
            if event.error is not None:
                raise event.error
            return Completion("".join(pieces), event.reason, event.usage, time.perf_counter() - begun)
        raise AssertionError("a request ended without an event")

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> Floats:
        """One vector per text, (texts, embedding_dim). Texts longer than the context are an error unless `truncate`."""
        if self.kind != "encoder":
            raise RequestError(f"{self.name} is a decoder: it generates, it does not embed", param="model")
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise RequestError("embed takes a list of texts", param="input")
        parts = (texts[i : i + EMBED_WINDOW] for i in range(0, len(texts), EMBED_WINDOW))
        vectors = [self._embed([self.encode_text(text, truncate=truncate) for text in part]) for part in parts]
        return np.concatenate(vectors) if vectors else np.zeros((0, self.embedding_dim or 0), np.float32)

    def embed_ids(self, sequences: Sequence[Sequence[int]]) -> Floats:
        """As embed, of token ids, special tokens included."""
        if self.kind != "encoder":
            raise RequestError(f"{self.name} is a decoder: it generates, it does not embed", param="model")
        parts = [self._embed(sequences[i : i + EMBED_WINDOW]) for i in range(0, len(sequences), EMBED_WINDOW)]
        return np.concatenate(parts) if parts else np.zeros((0, self.embedding_dim or 0), np.float32)

    def _embed(self, sequences: Sequence[Sequence[int]]) -> Floats:
        requests = [EmbedRequest(self._next_id(), tuple(ids)) for ids in sequences]
        out = np.zeros((len(sequences), self.embedding_dim or 0), np.float32)
        try:
            mailboxes = [self._submit(request) for request in requests]
            for index, mailbox in enumerate(mailboxes):
                while not mailbox:
                    self._step()
                event = mailbox.popleft()
                assert isinstance(event, FinishedEvent)
                if event.error is not None:
                    raise event.error
                out[index] = event.embedding
        finally:
            self._leave(request.request_id for request in requests)
        return out

    def encode_text(self, text: str, *, truncate: bool = False) -> list[int]:
        """Token ids of a text for embedding, special tokens included; the last special token survives truncation."""
        ids: list[int] = self._tokens().encode(text)
        if len(ids) <= self.context_len:
            return ids
        if not truncate:
            raise ContextLengthError(
                f"the text {text[:20] + '…'!r} has {len(ids):,} tokens; {self.name} takes at most {self.context_len:,}; "
                "shorten or split it, or have it cut with truncate=True (--truncate)",
                param="input",
            )
        return [*ids[: self.context_len - 1], ids[-1]]

    def logits(self, ids: Sequence[int]) -> Floats:
        """Logits of every position of one sequence, (len(ids), vocab). For evaluation: in blocks of its own, beside the scheduler."""
        self._need_decoder()
        if not 0 < len(ids) <= self.context_len:
            raise RequestError(f"logits takes 1 to {self.context_len} token ids, not {len(ids)}", param="ids")
        pool = self._loaded.scheduler.pool
        blocks = pool.take(blocks_for(len(ids)))
        try:
            rows = []
            for begin in range(0, len(ids), self._loaded.config.step_tokens):
                part = Part(ids[begin : begin + self._loaded.config.step_tokens], begin, blocks, all_rows=True)
                rows.append(self.engine.logits(concatenate([part])))
            return np.concatenate(rows)
        finally:
            pool.release(blocks)

    def summary(self) -> str:
        """What fits, in one line."""
        loaded, budget = self._loaded, self._loaded.budget
        parts = [f"weights {show_bytes(budget.weight_bytes)}"]
        if self.kind == "decoder":
            sequences = budget.kv_tokens // (blocks_for(self.context_len) * BLOCK_TOKENS)
            parts.append(f"KV {show_bytes(budget.kv_bytes)} → {counted(sequences, 'sequence')} of {self.context_len:,} tokens")
        else:
            parts.append(f"texts of up to {self.context_len:,} tokens")
        if self.context_len < loaded.built.max_context_len:
            more = "a larger --memory" if self.context_len < loaded.built.context_len else "a larger --max-context"
            parts[-1] += f" (the model takes {loaded.built.max_context_len:,}; {more} gives more)"
        return " · ".join([*parts, loaded.describe_precision(), *loaded.describe_machine()])

    def explain(self, *, every_layer: bool = False) -> str:
        """Every choice that was made for this model, and why. Equal layers are shown once, unless `every_layer`."""
        return self._loaded.explain(every_layer=every_layer)

    def describe(self) -> dict[str, Any]:
        """The model and its memory, ready for JSON."""
        return self._loaded.describe()

    def close(self) -> None:
        """Release the model's memory; every later use raises EngineStoppedError. Closing twice is fine."""
        if "loop" in self.__dict__:
            self._loaded.close()
            for name in ("loop", "engine", "plan", "_loaded"):
                del self.__dict__[name]

    def __getattr__(self, name: str) -> Any:
        if name in ("loop", "engine", "plan", "_loaded"):
            raise EngineStoppedError("the model is closed; load it again")
        raise AttributeError(f"a Model has no attribute {name!r}")


def _token_ids(prompt: object) -> list[int]:
    """`prompt` as token ids, or RequestError: text in a list is no prompt."""
    if not isinstance(prompt, Sequence) or not all(
        isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in prompt
    ):
        raise RequestError("a prompt is one text or a sequence of token ids", param="prompt")
    return [int(i) for i in prompt]


def load(ref: str, **options: Any) -> Model:
    """Load a model: a folder in Hugging Face layout, a GGUF file, a hub id, or the alias of a packaged model.

    Options (config.LoadConfig): precision, pins, kv_precision, threads, memory_bytes, max_context, executor, attention, disable_passes, exact;
    and `progress`, called with (stage, done, total). Raises ModelError, MemoryBudgetError, UsageError, HardwareError.
    """
    return Model(load_model(ref, **options))
