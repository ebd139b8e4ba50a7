"""Finds patterns whose matching time can explode, in tokenizer files of unknown origin, before any text meets them.

The library's engine backtracks. A pattern is refused when a group that repeats without bound holds another unbounded
repeat or a choice: the two ways to exponential time. It errs on the safe side; no tokenizer in common use is refused.
"""

from __future__ import annotations

import re

MAX_PATTERN_CHARS = 4096
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
