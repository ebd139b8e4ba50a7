"""Text of a growing token sequence: complete characters only, cut before the first stop string, wherever token borders fall."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class TokenStream(Protocol):
    """An incremental detokenizer: complete characters only; `flush` gives what is still held."""

    def push(self, token_id: int) -> str: ...

    def flush(self) -> str: ...


class StoppedText:
    """Text pushed token by token. What might be the beginning of a stop string is held until it is decided."""

    def __init__(self, stream: TokenStream, stops: Sequence[str]) -> None:
        self._stream, self._stops = stream, tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """The text that is certain after this token; `stopped` turns True when a stop string is complete."""
        return self._release(self._stream.push(token_id))

    def flush(self) -> str:
        """The rest, at the end of the sequence: what was held for a stop string that did not come belongs to the text."""
        text = self._release(self._stream.flush())
        held, self._held = self._held, ""
        return text if self.stopped else text + held

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            text, self._held = self._held[: min(found)], ""
            return text
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return text


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that ends `text`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
