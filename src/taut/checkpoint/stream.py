"""Token ids to text: whole, or token by token without ever showing half a character.

A byte-level or byte-fallback vocabulary is a table of bytes, one entry a token. Its text is the concatenation of the
bytes, decoded as UTF-8 with the replacement character for bytes that are no character. So what a stream emits, put
together, is exactly what decoding everything gives.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Iterable, Sequence

_WORD_START = "▁"
_MAX_HELD_TOKENS = 16


@functools.cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in character of each byte → the byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


@functools.cache
def _to_latin() -> dict[int, int]:
    """byte_alphabet for str.translate; what is outside of it becomes, or stays, a character that Latin-1 has not."""
    return dict.fromkeys(range(256), 256) | {ord(character): byte for character, byte in byte_alphabet().items()}


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; a token with a character outside the alphabet stands for itself."""
    try:
        return token.translate(_to_latin()).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode("utf-8", "replace")


def parse_byte_token(token: str) -> int | None:
    """The byte of a `<0xNN>` token with exactly two hexadecimal digits; None for anything else (`<0x-1>`, `<0xZZ>`,
    `<0x1FF>`).
    """
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        digits = token[3:5]
        if all(character in "0123456789abcdefABCDEF" for character in digits):
            return int(digits, 16)
    return None


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece token: `<0xNN>` is a byte, the word-start mark a space."""
    byte = parse_byte_token(token)
    return bytes([byte]) if byte is not None else token.replace(_WORD_START, " ").encode("utf-8", "replace")


class TokenStream:
    """Incremental detokenizer. `push` returns the characters that became complete, `flush` what is left at the end.

    Bytes that cannot become a character appear as U+FFFD, as they do when the whole is decoded at once.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], *, skip: frozenset[int], strip_first_space: bool = False) -> None:
        self._token_bytes, self._skip = token_bytes, skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip_pending = strip_first_space

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        return self._strip(self._decoder.decode(self._token_bytes(token_id)))

    def flush(self) -> str:
        text = self._strip(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        return text

    def _strip(self, text: str) -> str:
        if self._strip_pending and text:
            self._strip_pending = False
            return text.removeprefix(" ")
        return text


class WindowStream(TokenStream):
    """For vocabularies that are no table of bytes (WordPiece): decodes the tokens since the last emitted text again
    with each new one.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], *, skip: frozenset[int]) -> None:
        super().__init__(lambda _: b"", skip=skip)
        self._decode = decode
        self._context: list[int] = []  # already emitted; the last tokens decide how the next one joins
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        if token_id in self._skip:
            return ""
        self._held.append(token_id)
        before, now = self._decode(self._context), self._decode(self._context + self._held)
        if len(self._held) < _MAX_HELD_TOKENS and (now.endswith("\N{REPLACEMENT CHARACTER}") or not now.startswith(before)):
            return ""
        return self._emit(before, now)

    def flush(self) -> str:
        return self._emit(self._decode(self._context), self._decode(self._context + self._held))

    def _emit(self, before: str, now: str) -> str:
        if self._held:
            self._context, self._held = self._held[-_MAX_HELD_TOKENS:], []
        return now[len(before) :]


def decode_all(stream: TokenStream, ids: Iterable[int]) -> str:
    return "".join([*(stream.push(token_id) for token_id in ids), stream.flush()])
