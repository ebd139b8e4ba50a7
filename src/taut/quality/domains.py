"""Held-out text in three domains, and calibration text that shares nothing with it.

A section (a help topic, a file, a chapter) belongs to the evaluation half or to the calibration half by a hash of its name, so neither
list is chosen by hand and neither depends on the other. What the calibration half repeats of the other (help topics quote each other, so
do Kings and Isaiah) is cut out: no run of 12 words stands in both.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from taut.errors import UsageError
from taut.quality import sources
from taut.quality.texts import is_sentence, split_sentences, spread
from taut.units import counted

Half = Literal["evaluation", "calibration"]
Ints = NDArray[np.int32]
DOMAINS = ("prose", "technical", "code")
RUN_LEN = 12  # words in a row that no calibration text shares with the evaluation text
PIECE_LEN = 2000  # characters, at least, of a piece of calibration text
_CHARACTERS = 12  # more than any text here has to a token: so much of a document is tokenized


class TokenizerLike(Protocol):
    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]: ...


@dataclass(frozen=True)
class _Domain:
    sections: Callable[[], Iterator[sources.Section]]
    missing: Callable[[], str | None]
    joint: str  # between two parts of a document


_DOMAINS: Mapping[str, _Domain] = {
    "prose": _Domain(sources.prose, sources.missing_prose, " "),
    "technical": _Domain(sources.technical, lambda: None, "\n\n"),
    "code": _Domain(sources.code, sources.missing_code, "\n\n"),
}


@dataclass(frozen=True)
class Document:
    """What is read from its beginning on: a topic, a file, or a book's chapters of one half, in order."""

    name: str
    parts: tuple[str, ...]
    joint: str

    @property
    def text(self) -> str:
        return self.joint.join(self.parts)


def check(domains: Iterable[str]) -> tuple[str, ...]:
    """`domains`, each once. UsageError when one is unknown, or there is none."""
    given = tuple(dict.fromkeys(domains))
    unknown = [name for name in given if name not in _DOMAINS]
    if unknown or not given:
        what = f"the domain {unknown[0]!r} is given" if unknown else "no domain is given"
        raise UsageError(f"{what}; {', '.join(DOMAINS)} are accepted")
    return given


def missing(domain: str) -> str | None:
    """Why this machine has no text of `domain`, and what to do; None when it has."""
    return _DOMAINS[domain].missing()


def half_of(section: str) -> Half:
    """The half that the section of this name belongs to."""
    return "evaluation" if hashlib.sha256(section.encode()).digest()[0] % 2 == 0 else "calibration"


@functools.cache
def documents(domain: str, half: Half) -> tuple[Document, ...]:
    """All documents of one half, in the order of their names' hashes: the first few are then a fair draw. UsageError when missing."""
    (domain,) = check([domain])
    if reason := missing(domain):
        raise UsageError(f"there is no text of the domain {domain}: {reason}; or choose among the other domains")
    parts: dict[str, list[str]] = {}
    for section in _DOMAINS[domain].sections():
        if half_of(section.name) == half:
            parts.setdefault(section.document, []).extend(section.parts)
    if half == "calibration":
        seen = frozenset(run for document in documents(domain, "evaluation") for run in runs(" ".join(document.parts)))
        parts = {name: _without(found, seen) for name, found in parts.items()}
    ordered = sorted((name for name in parts if parts[name]), key=_digest)
    return tuple(Document(name, tuple(parts[name]), _DOMAINS[domain].joint) for name in ordered)


def runs(text: str) -> Iterator[str]:
    """Every `RUN_LEN` words in a row."""
    words = text.split()
    return (" ".join(words[i : i + RUN_LEN]) for i in range(len(words) - RUN_LEN + 1))


def _without(parts: Sequence[str], seen: frozenset[str]) -> list[str]:
    """`parts` without those that hold a piece of a run in `seen`, when they are read in a row."""
    left = list(parts)
    while True:
        owners = [number for number, part in enumerate(left) for _ in part.split()]
        shared = [first for first, run in enumerate(runs(" ".join(left))) if run in seen]
        found = {owner for first in shared for owner in owners[first : first + RUN_LEN]}
        if not found:
            return left
        left = [part for number, part in enumerate(left) if number not in found]


def _digest(name: str) -> bytes:
    return hashlib.sha256(f"order of {name}".encode()).digest()


def windows(tokenizer: TokenizerLike, domain: str, count: int, length: int = 512, half: Half = "evaluation") -> Ints:
    """(count, length) token ids, each row behind the tokenizer's BOS where it has one: the first piece of each document, then the second
    of each, and so on. UsageError when there is not so much text.
    """
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    body_len = length - len(start)
    if count < 1 or body_len < 2:
        raise UsageError(
            f"{counted(count, 'window')} of {counted(length, 'token')} asked for; at least 1 of at least 3 is needed"
        )
    found: list[list[int]] = []
    number = 0
    while len(found) < count:
        pieces = [_piece(tokenizer, document.text, number, body_len) for document in documents(domain, half)]
        long_enough = [piece for piece in pieces if len(piece) == body_len]
        if not long_enough:
            raise UsageError(
                f"the domain {domain} holds only {counted(len(found), 'window')} of {counted(length, 'token')}; "
                f"ask for fewer than {count:,}, or shorter ones"
            )
        found += [[*start, *piece] for piece in long_enough]
        number += 1
    return np.array(found[:count], np.int32)


def _piece(tokenizer: TokenizerLike, text: str, number: int, body_len: int) -> list[int]:
    """The ids of the `number`-th `body_len` tokens of `text`; fewer where it ends."""
    first = number * body_len
    ids = tokenizer.encode(text[: (first + body_len) * _CHARACTERS], add_special=False, parse_special=False)
    return ids[first : first + body_len]


def sentences(domain: str, count: int) -> list[str]:
    """`count` different texts of 4 to 60 words of the evaluation half: sentences, verses or blocks of code, spread over all of it."""
    parts = (part for document in documents(domain, "evaluation") for part in document.parts)
    texts = (text for part in parts for text in (split_sentences(part) if domain == "technical" else [part]))
    found = list(dict.fromkeys(text for text in texts if is_sentence(text, ends=domain == "technical")))
    if not 1 <= count <= len(found):
        raise UsageError(f"{count:,} sentences of the domain {domain} asked for; 1 to {len(found):,} can be given")
    return spread(found, count)


def calibration_texts(domains: Iterable[str] | None = None) -> list[str]:
    """Pieces of about `PIECE_LEN` characters of the calibration half, one of each domain in turn, of other documents each time, so that
    any beginning of the list is a fair mixture. `domains`: default all that this machine has.
    """
    chosen = [name for name in DOMAINS if missing(name) is None] if domains is None else check(domains)
    of_domains = (_turns([_pieces(document) for document in documents(name, "calibration")]) for name in chosen)
    return _turns(list(of_domains))


def calibration_text(domains: Iterable[str] | None = None) -> str:
    """`calibration_texts`, joined by empty lines."""
    return "\n\n".join(calibration_texts(domains))


def _pieces(document: Document) -> list[str]:
    pieces: list[list[str]] = [[]]
    length = 0
    for part in document.parts:
        if length >= PIECE_LEN:
            pieces.append([])
            length = 0
        pieces[-1].append(part)
        length += len(part) + len(document.joint)
    return [document.joint.join(piece) for piece in pieces]


def _turns(lists: Sequence[Sequence[str]]) -> list[str]:
    """The first of each list, then the second of each, and so on."""
    return [text for row in zip_longest(*lists) for text in row if text is not None]
