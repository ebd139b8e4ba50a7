"""Finds what in a tokenizer file of unknown origin could make time or memory explode, before any text meets it.

Time: the library's engine backtracks, so a pattern is refused when a group that repeats without bound holds another
unbounded repeat or a choice, the two ways to exponential time. Memory: a failed allocation in the library ends the process,
so steps that replace little by much are refused. It errs on the safe side.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from typing import Any

MAX_PATTERN_CHARS = 4096
MAX_GROWTH = 64  # characters out for one character in, over all steps
MAX_CHARSMAP_ENTRY_BYTES = 64  # the longest in use takes 33
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]|\{\d*(?:,\d*)?\}|.", re.DOTALL)


def explain_danger(pattern: str) -> str | None:
    """Why the pattern is refused, None when it is fine."""
    if len(pattern) > MAX_PATTERN_CHARS:
        return f"is longer than {MAX_PATTERN_CHARS:,} characters"
    # One frame an open group: [holds an unbounded repeat, holds a choice].
    frames = [[False, False]]
    closed: list[bool] | None = None  # the group that the previous token closed
    for token in _TOKEN.findall(pattern):
        is_repeat = token in "*+" or (token.startswith("{") and token.endswith(",}"))
        if is_repeat:
            if closed is not None and any(closed):
                return "repeats a group that itself repeats or chooses"
            frames[-1][0] = True
        if token == "(":
            frames.append([False, False])
        elif token == ")" and len(frames) > 1:
            closed = frames.pop()
            frames[-1] = [frames[-1][0] or closed[0], frames[-1][1] or closed[1]]
            continue
        elif token == "|":
            frames[-1][1] = True
        closed = None
    return None


def explain_dangers(spec: dict[str, Any]) -> str | None:
    """What is refused in a tokenizer.json, None when all is fine."""
    steps = [step for key in ("normalizer", "pre_tokenizer", "decoder") for step in _steps(spec.get(key))]
    growth = 1.0
    for step in steps:
        pattern = step.get("pattern")
        if isinstance(pattern, dict) and isinstance(pattern.get("Regex"), str):
            danger = explain_danger(pattern["Regex"])
            if danger:
                return f"the pattern {pattern['Regex'][:80]!r} {danger}; its time could grow without bound"
        if step.get("type") == "Precompiled" and not _is_charsmap_small(step.get("precompiled_charsmap")):
            return f"a character map replaces a character by more than {MAX_CHARSMAP_ENTRY_BYTES} bytes"
        growth *= _growth(step)
    if growth > MAX_GROWTH:
        return f"its steps make up to {growth:,.0f} characters of one; at most {MAX_GROWTH} are accepted"
    return None


def _steps(spec: object) -> Iterator[dict[str, Any]]:
    """A step, with the members of a Sequence one by one."""
    if isinstance(spec, dict):
        yield spec
        spec = list(spec.values())
    if isinstance(spec, list):
        for item in spec:
            yield from _steps(item)


def _growth(step: dict[str, Any]) -> float:
    """Characters that the step makes of one at most, beyond what Unicode's own forms do."""
    if step.get("type") == "Precompiled":
        return 8.0
    texts = [step[key] for key in ("content", "prepend", "prefix", "suffix", "replacement") if isinstance(step.get(key), str)]
    pattern = step.get("pattern")
    matched = len(pattern["String"]) if isinstance(pattern, dict) and isinstance(pattern.get("String"), str) else 1
    longest = max(map(len, texts), default=0)
    return max(1.0, longest / matched if matched else 1.0 + longest)


def _is_charsmap_small(text: object) -> bool:
    """SentencePiece's map: the size of a trie (4 bytes), the trie, then the replacements, each ended by a zero byte."""
    try:
        raw = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return True  # the library says what is wrong with it
    replacements = raw[4 + int.from_bytes(raw[:4], "little") :]
    return max(map(len, replacements.split(b"\0"))) <= MAX_CHARSMAP_ENTRY_BYTES
