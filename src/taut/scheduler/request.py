"""What the scheduler is asked for, and what it answers. Plain data; no tensors, no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from taut.errors import RequestError

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. `seed` None draws a random one."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_integer("top_k", self.top_k, least=0)
        if self.seed is not None:
            _check_integer("seed", self.seed)


def _check_number(name: str, value: object, least: float, most: float) -> None:
    """RequestError unless `value` is a finite number in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not least <= value <= most:
        limit = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise RequestError(f"{name} must be a finite number {limit}, not {value!r}", param=name)


def _check_integer(name: str, value: object, least: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
        raise RequestError(
            f"{name} must be an integer{'' if least is None else f' of at least {least}'}, not {value!r}", param=name
        )


@dataclass(frozen=True)
class GenerateRequest:
    """Continue `prompt` (token ids, at least one) by at most `max_tokens` tokens. `choice` separates the streams of one seed.
    `stop` strings end the text before them; ids in `stop_token_ids` (the model's own end tokens are added by the Loop) end it silently."""

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    choice: int = 0

    def __post_init__(self) -> None:
        _check_integer("max_tokens", self.max_tokens, least=1)
        if bad := [stop for stop in self.stop if not isinstance(stop, str) or not stop]:
            raise RequestError(f"a stop string must be text of at least one character, not {bad[0]!r}", param="stop")


@dataclass(frozen=True)
class EmbedRequest:
    """Embed one token sequence (special tokens already added)."""

    request_id: str
    prompt: tuple[int, ...]


Request = GenerateRequest | EmbedRequest


@dataclass(frozen=True)
class Usage:
    """Token counts of one request; `cached_tokens` of the prompt came from the prefix cache."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class TextEvent:
    """New text of a running request: complete characters only, no part of a stop string. May be empty."""

    request_id: str
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class FinishedEvent:
    """The one terminal event of a request. `error` is set exactly when `reason` is "error"; `embedding` for an EmbedRequest."""

    request_id: str
    reason: FinishReason
    usage: Usage
    error: Exception | None = None
    embedding: NDArray[np.float32] | None = None


Event = TextEvent | FinishedEvent
