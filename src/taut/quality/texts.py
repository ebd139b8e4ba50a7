"""Real English text that every Python carries: the interpreter's own help topics."""

from __future__ import annotations

import re
from itertools import islice
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
    found: dict[str, None] = {}
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(pydoc_text().split())):
        if 4 <= len(sentence.split()) <= 60 and sentence.endswith((".", "!", "?")):
            found[sentence] = None
    assert len(found) >= count, f"only {len(found)} sentences"
    return list(islice(found, 0, len(found), len(found) // count))[:count]
