"""JSON read as data of unknown origin: bounded in size and depth, no duplicate keys, no NaN or Infinity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

from taut.checkpoint.files import describe_content, read_small
from taut.errors import ModelFormatError

MAX_BYTES = 64 << 20
MAX_DEPTH = 64
MAX_CONTAINERS = 4_000_000  # lists and objects in one file: each costs some 64 bytes once parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {twice[:80]!r} stands twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            for child in (item.values() if type(item) is dict else item)
            if type(child) is list or type(child) is dict  # json makes no subclasses, and a vocabulary has a million of these
        ]
        if not level:
            return False
    return True


def parse(
    data: bytes, *, file: str, max_depth: int = MAX_DEPTH, max_containers: int = MAX_CONTAINERS, offset: int | None = None
) -> Any:
    """The JSON value in `data`. `file` and `offset` are named in errors; raises ModelFormatError only."""
    if data.count(b"[") + data.count(b"{") > max_containers:
        raise ModelFormatError(f"holds more than {max_containers:,} lists and objects", file=file, offset=offset)
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ModelFormatError(f"is nested deeper than {max_depth} levels", file=file, offset=offset) from None
    except (ValueError, MemoryError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        seems = describe_content(data[:512])
        reason = f"seems to be {seems}" if seems else f"is not valid JSON: {error}"
        raise ModelFormatError(reason, file=file, offset=offset) from None
    if isinstance(value, (dict, list)) and _depth_exceeds(value, max_depth - 1):
        raise ModelFormatError(f"is nested deeper than {max_depth} levels", file=file, offset=offset)
    return value


def load(path: Path, *, name: str = "", max_bytes: int = MAX_BYTES, max_depth: int = MAX_DEPTH) -> Any:
    """The JSON value in a file."""
    return parse(read_small(path, max_bytes=max_bytes, name=name), file=name or path.name, max_depth=max_depth)


def load_object(path: Path, *, name: str = "", max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file; another kind of value is an error."""
    value = load(path, name=name, max_bytes=max_bytes)
    if not isinstance(value, dict):
        raise ModelFormatError(f"holds a {type(value).__name__}; a JSON object is expected", file=name or path.name)
    return value
