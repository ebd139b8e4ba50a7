"""Real English text that every Python carries: the interpreter's own help topics."""

from __future__ import annotations

import re
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class _Tokenizer(Protocol):
    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


def pydoc_text() -> str:
    """All topics in key order, joined by a space (some 700 kB; it varies a little with Python's version)."""
    from pydoc_data.topics import topics

    return " ".join(topics[key] for key in sorted(topics))


def pydoc_windows(tokenizer: _Tokenizer, windows: int, length: int) -> NDArray[np.int32]:
    """(windows, length) token ids: consecutive pieces of `pydoc_text`, each behind the tokenizer's BOS where it has one."""
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    body_len = length - len(start)
    # Tokenizing a part is enough; 12 characters a token is more than any text here has.
    text = pydoc_text()[: windows * body_len * 12 + 1000]
    body = np.asarray(tokenizer.encode(text, add_special=False, parse_special=False), np.int32)[: windows * body_len]
    assert len(body) == windows * body_len, "the help topics are too short for that many windows"
    starts = np.tile(np.array(start, np.int32), (windows, 1))
    return np.concatenate([starts, body.reshape(windows, body_len)], axis=1)


def sentences(count: int) -> list[str]:
    """`count` different English sentences of 4 to 60 words, spread over all topics; the same ones every time."""
    found = list(dict.fromkeys(sentence for sentence in split_sentences(pydoc_text()) if is_sentence(sentence)))
    assert len(found) >= count, f"only {len(found)} sentences"
    return spread(found, count)


def split_sentences(text: str) -> list[str]:
    """`text` on one line, cut where a sentence seems to begin."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()))


def is_sentence(text: str, *, ends: bool = True) -> bool:
    """Whether `text` has 4 to 60 words and, unless it need not, ends as a sentence does."""
    return 4 <= len(text.split()) <= 60 and (not ends or text.endswith((".", "!", "?")))


def spread(found: list[str], count: int) -> list[str]:
    """`count` of the texts at equal distances."""
    return found[:: len(found) // count][:count]
