"""Windows: text as a model is to read it for calibration, in sequences of token ids.

Decoders read windows of up to `length` tokens, each behind the model's BOS; the rest of a text that fills less than half a window is left
out, unless it is all of the text. Encoders read every text as it is, cut to `length` with its last special token kept. Token ids are taken
as they are, cut to windows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taut.errors import UsageError
from taut.loading import Loaded

FEW_WINDOWS = 8
Texts = Iterable[str] | Iterable[Sequence[int]] | Iterable[str | Sequence[int]]


@dataclass(frozen=True)
class Windows:
    """`ids` are windows of token ids; `warnings` say what about the text is poor."""

    ids: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def digest(self) -> str:
        """A hash of the token ids and where they are cut."""
        digest = hashlib.blake2b(digest_size=16)
        for window in self.ids:
            digest.update(len(window).to_bytes(4, "little") + np.array(window, "<i4").tobytes())
        return digest.hexdigest()


def cut(loaded: Loaded, texts: Texts, tokens: int, length: int) -> Windows:
    """Windows of `texts`, until they have `tokens` tokens or the texts end. UsageError where there is nothing to read."""
    if isinstance(texts, (str, bytes)):
        raise UsageError("calibration takes a sequence of texts or of lists of token ids, not one text; put it in a list")
    length, is_decoder = min(length, loaded.context_len), loaded.built.kind == "decoder"
    found: list[tuple[int, ...]] = []
    left = tokens
    for window in (window for text in texts for window in _of_text(loaded, text, length, is_decoder)):
        found.append(tuple(window[:left] if is_decoder else window))
        left -= len(found[-1])
        if left <= 0:
            break
    if not found:
        raise UsageError("the calibration text is empty: no text gave a token; give texts, a file or a folder with some")
    return Windows(tuple(found), tuple(_warnings(found, tokens, length)))


def _of_text(loaded: Loaded, text: str | Sequence[int], length: int, is_decoder: bool) -> Iterator[Sequence[int]]:
    if not isinstance(text, str):
        ids = _checked(text, loaded.built.vocab_size)
        yield from (ids[begin : begin + length] for begin in range(0, len(ids), length))
        return
    tokenizer: Any = loaded.checkpoint.tokenizer
    if tokenizer is None:
        raise UsageError(f"{loaded.checkpoint.name} has no tokenizer; give lists of token ids instead of texts")
    if not text.strip():
        return
    if not is_decoder:
        ids = tokenizer.encode(text, parse_special=False)
        yield ids if len(ids) <= length else [*ids[: length - 1], ids[-1]]
        return
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    body = max(1, length - len(start))
    for begin in range(0, len(ids), body):
        part = ids[begin : begin + body]
        if begin == 0 or 2 * len(part) >= body:
            yield [*start, *part]


def _checked(ids: object, vocab_size: int) -> list[int]:
    if not isinstance(ids, (Sequence, np.ndarray)) or not all(
        isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in ids
    ):
        raise UsageError(f"calibration takes texts or lists of token ids, not {type(ids).__name__} {str(ids)[:40]!r}")
    if bad := [int(i) for i in ids if not 0 <= i < vocab_size][:1]:
        raise UsageError(f"token id {bad[0]} is outside the model's vocabulary [0, {vocab_size})")
    return [int(i) for i in ids]


def _warnings(windows: list[tuple[int, ...]], tokens: int, length: int) -> Iterator[str]:
    got = sum(map(len, windows))
    if got < tokens:
        yield f"the calibration text has only {got:,} of {tokens:,} tokens; more text makes a better calibration"
    if len(windows) < min(FEW_WINDOWS, -(-tokens // length)):
        yield f"the calibration text gave only {len(windows)} windows; a few texts say little about all"
    if repeated := len(windows) - len(set(windows)):
        yield f"{repeated} of {len(windows)} windows of the calibration text are repetitions; they add nothing"
