"""The Python interface: load a model, then chat, generate and embed with it.

model = taut.load("smollm2-135m")
print(model.chat([{"role": "user", "content": "What is a hash table?"}]).text)
for piece in model.generate("Once upon a time", stream=True):
    print(piece, end="")
vectors = taut.load("minilm").embed(["one sentence", "another"])
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import BLOCK_TOKENS, blocks_for
from taut.errors import RequestError
from taut.loading import Loaded, load_model
from taut.scheduler.request import EmbedRequest, FinishedEvent, FinishReason, GenerateRequest, SamplingParams, TextEvent, Usage

Progress = Any
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
        self.name = loaded.checkpoint.name
        self.kind: Literal["decoder", "encoder"] = loaded.built.kind
        self.tokenizer = loaded.checkpoint.tokenizer
        self.chat_template = loaded.checkpoint.chat_template
        self.generation_config = loaded.checkpoint.generation_config
        self.context_len = loaded.built.context_len
        self.embedding_dim = loaded.built.hidden_size if self.kind == "encoder" else None
        self.loop = loaded.loop
        self.engine = loaded.engine
        self.plan = loaded.plan

    @property
    def loaded(self) -> Loaded:
        """The parts of the model: checkpoint, graph, plan, weights, budget."""
        return self._loaded

    def encode_chat(self, messages: Messages) -> list[int]:
        """The token ids of a conversation with the model's chat template, up to where the assistant speaks."""
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
        ids = self._tokens().encode(prompt) if isinstance(prompt, str) else list(prompt)
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
        if self.kind != "decoder":
            raise RequestError(f"{self.name} is an encoder: it embeds, it does not generate", param="model")
        if unknown := set(sampling) - set(SamplingParams.__dataclass_fields__):
            raise RequestError(
                f"unknown option {', '.join(sorted(unknown))}; accepted: {', '.join(SamplingParams.__dataclass_fields__)}"
            )
        room = max(1, min(self.context_len, self._loaded.budget.kv_tokens) - len(ids))
        return GenerateRequest(
            self._next_id(), tuple(ids), min(max_tokens or room, room), SamplingParams(**sampling), tuple(stop)
        )

    def _next_id(self) -> str:
        return f"local-{next(self._ids)}"

    def _events(self, request: GenerateRequest) -> Iterator[TextEvent | FinishedEvent]:
        self.loop.submit(request)
        ended = False
        try:
            while not ended:
                for event in self.loop.step():
                    if event.request_id == request.request_id:
                        ended = isinstance(event, FinishedEvent)
                        yield event
        finally:
            if not ended:
                self.loop.cancel(request.request_id)
                self.loop.step()

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
        if isinstance(texts, str):
            raise RequestError("embed takes a list of texts, not one string", param="input")
        wanted = {}
        try:
            for index, text in enumerate(texts):
                ids = self.encode_text(text, truncate=truncate)
                request = EmbedRequest(self._next_id(), tuple(ids))
                self.loop.submit(request)
                wanted[request.request_id] = index
            return self._collect(wanted)
        except BaseException:
            for request_id in wanted:
                self.loop.cancel(request_id)
            self.loop.step()
            raise

    def encode_text(self, text: str, *, truncate: bool = False) -> list[int]:
        """Token ids of a text for embedding, special tokens included; the last special token survives truncation."""
        ids: list[int] = self._tokens().encode(text)
        if len(ids) > self.context_len and truncate:
            ids = [*ids[: self.context_len - 1], ids[-1]]
        return ids

    def _collect(self, wanted: dict[str, int]) -> Floats:
        out = np.zeros((len(wanted), self.embedding_dim or 0), np.float32)
        while wanted:
            for event in self.loop.step():
                if isinstance(event, FinishedEvent) and event.request_id in wanted:
                    index = wanted.pop(event.request_id)
                    if event.error is not None:
                        raise event.error
                    out[index] = event.embedding
        return out

    def logits(self, ids: Sequence[int]) -> Floats:
        """Logits of every position of one sequence, (len(ids), vocab). For evaluation: computed in one step, in blocks of its own."""
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
        budget, target = self._loaded.budget, self._loaded.describe_machine()
        parts = [f"weights {budget.weight_bytes / 1e9:.2f} GB"]
        if budget.kv_blocks:
            whole = budget.kv_tokens // (-(-self.context_len // BLOCK_TOKENS) * BLOCK_TOKENS)
            fits = f"{whole} sequences of {self.context_len:,} tokens" if whole else f"{budget.kv_tokens:,} tokens in all"
            parts.append(f"KV {budget.kv_bytes / 1e9:.2f} GB → {fits}")
        return " · ".join([*parts, self._loaded.config.precision, *target])

    def explain(self) -> str:
        """Every choice that was made for this model, and why."""
        return self._loaded.explain()

    def describe(self) -> dict[str, Any]:
        """The model and its memory, ready for JSON."""
        return self._loaded.describe()

    def close(self) -> None:
        """Release the model's memory. The model cannot be used afterwards."""
        self._loaded.close()


def load(ref: str, **options: Any) -> Model:
    """Load a model: a folder in Hugging Face layout, a GGUF file, a hub id, or the alias of a packaged model.

    Options (config.LoadConfig): precision, threads, memory_bytes, max_context, executor, disable_passes, exact; and `progress`, called
    with (stage, done, total). Raises ModelError, MemoryBudgetError, UsageError, HardwareError.
    """
    return Model(load_model(ref, **options))
