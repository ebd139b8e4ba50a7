"""JSON of any size, parsed so that other threads run meanwhile: Python's C parser holds the interpreter until it is done.

Containers are read by json's own Python parser, between whose steps the interpreter is free; runs of numbers, which are most of
a large body (token ids), go to the C parser in pieces of PIECE_CHARS. What costs other threads time afterwards, millions of
containers for the garbage collector and huge objects, is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import decoder, scanner
from typing import Any

PIECE_CHARS = 2**16
MAX_CONTAINERS = 2**18
MAX_KEYS = 2**14  # of one object

_PIECE = re.compile(rf'[^\[\]{{}}"]{{1,{PIECE_CHARS - 1}}},')  # whole values and commas only: the last comma is the end
_array: Callable[..., tuple[list[Any], int]] = decoder.JSONArray  # type: ignore[attr-defined]
_python_scanner: Callable[[Any], Any] = scanner.py_make_scanner  # type: ignore[attr-defined]


class TooManyError(ValueError):
    """More containers or keys than are read."""


class LargeDecoder(json.JSONDecoder):
    """`json.JSONDecoder` for one large text: the same values and errors, or TooManyError."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(object_pairs_hook=self._object, **hooks)
        self._pieces = json.JSONDecoder(**hooks)
        self._num_containers = 0
        self.parse_array = self._parse_array
        self.scan_once = _python_scanner(self)

    def _parse_array(self, text_and_start: tuple[str, int], scan_once: Any) -> tuple[list[Any], int]:
        """JSONArray with its signature: the text and where the array's first value may stand, to the values and where it ends."""
        self._count_container()
        text, at = text_and_start
        values: list[Any] = []
        while piece := _PIECE.match(text, at):
            values += self._parse_piece(text, at, piece.end() - 1)
            at = piece.end()
        rest, end = _array((text, at), scan_once)
        if values and not rest:  # [1,]
            raise json.JSONDecodeError("Expecting value", text, at)
        return values + rest, end

    def _parse_piece(self, text: str, start: int, end: int) -> list[Any]:
        try:
            values: list[Any] = self._pieces.decode(f"[{text[start:end]}]")
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, start + error.pos - 1) from None
        if not values:  # [,1]
            raise json.JSONDecodeError("Expecting value", text, start)
        return values

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._count_container()
        if len(pairs) > MAX_KEYS:
            raise TooManyError(f"an object has {len(pairs)} fields; at most {MAX_KEYS} are read")
        return dict(pairs)

    def _count_container(self) -> None:
        self._num_containers += 1
        if self._num_containers > MAX_CONTAINERS:
            raise TooManyError(f"there are more than {MAX_CONTAINERS} arrays and objects")
