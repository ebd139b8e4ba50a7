"""What the server needs of the engine's side, as types. Knows no implementation, so tests can put a scripted one in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

from taut.scheduler.request import Event, Request

ModelKind = Literal["decoder", "encoder"]


class StatsLike(Protocol):
    """Gauges of the scheduler at one moment. `steps` counts since the start."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def kv_blocks_used(self) -> int: ...
    @property
    def kv_blocks_total(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def guards(self) -> Mapping[str, int]:
        """What the engine's guards have counted, by kind; kinds at zero may be absent."""


class LoopLike(Protocol):
    """The scheduler's loop. Every call comes from one thread, its owner."""

    @property
    def has_work(self) -> bool: ...
    @property
    def max_queued(self) -> int:
        """Most requests that can wait together; constant, so any thread may ask."""

    @property
    def max_queued_tokens(self) -> int:
        """Most prompt tokens that can wait together; constant too."""

    def submit(self, request: Request) -> None:
        """Take a request, or raise RequestError (it can never run) or OverloadedError (not now)."""

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[Event]: ...

    def rest(self) -> None:
        """Nothing has happened for a while: give back what only work needs."""

    def stats(self) -> StatsLike: ...


class TokenizerLike(Protocol):
    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


class ChatTemplateLike(Protocol):
    def render(self, messages: list[dict[str, Any]], *, add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt as text; raises RequestError with the template's own message."""


class ModelLike(Protocol):
    """A loaded model. `describe` is json-able: name, kind, precision, isa, threads, memory."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> ModelKind: ...
    @property
    def tokenizer(self) -> TokenizerLike | None: ...
    @property
    def chat_template(self) -> ChatTemplateLike | None: ...
    @property
    def loop(self) -> LoopLike: ...
    @property
    def context_len(self) -> int: ...
    @property
    def embedding_dim(self) -> int | None: ...
    @property
    def generation_config(self) -> Mapping[str, Any]: ...

    def describe(self) -> dict[str, Any]: ...
