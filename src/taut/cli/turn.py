"""One answer of a model in this process: its text as it comes, then what it cost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from taut.scheduler.request import FinishedEvent, GenerateRequest, TextEvent
from taut.units import counted

if TYPE_CHECKING:
    from taut.api import Model


class Turn:
    """Iterate for the pieces of text; afterwards `finished` says how it ended. Leaving the iteration early cancels the request."""

    def __init__(self, model: Model, request: GenerateRequest) -> None:
        self._model, self._request = model, request
        self.finished: FinishedEvent | None = None
        self.first_s = self.seconds = 0.0  # from the start to the first token, and to the end

    def __iter__(self) -> Iterator[str]:
        loop, began = self._model.loop, time.perf_counter()
        loop.submit(self._request)
        try:
            while self.finished is None:
                for event in loop.step():
                    self.seconds = time.perf_counter() - began
                    if isinstance(event, FinishedEvent):
                        self.finished = event
                    elif isinstance(event, TextEvent):
                        self.first_s = self.first_s or self.seconds
                        if event.text:
                            yield event.text
        finally:
            if self.finished is None:
                loop.cancel(self._request.request_id)
                while loop.has_work:
                    loop.step()
        if self.finished.error is not None:
            raise self.finished.error

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed: the first token, which waits for the prompt, is left out."""
        assert self.finished is not None
        count = self.finished.usage.completion_tokens
        return (count - 1) / (self.seconds - self.first_s) if count > 1 and self.seconds > self.first_s else 0.0

    def summary(self) -> str:
        """Speed and counts in one line."""
        assert self.finished is not None
        usage = self.finished.usage
        parts = [counted(usage.completion_tokens, "token")]
        if self.tokens_per_s:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        cached = f", {usage.cached_tokens:,} of them cached" if usage.cached_tokens else ""
        parts += [f"first after {self.first_s:.2f} s", f"prompt {counted(usage.prompt_tokens, 'token')}{cached}"]
        if self.finished.reason == "length":
            parts.append("cut at the limit")
        return " · ".join(parts)

    def report(self) -> dict[str, Any]:
        """The same for programs."""
        assert self.finished is not None
        usage = self.finished.usage
        return {
            "finish_reason": self.finished.reason,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": usage.cached_tokens,
            },
            "first_s": self.first_s,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_s,
        }
