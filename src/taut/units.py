"""Sizes and counts, as people write and read them. Knows no model and no machine."""

from __future__ import annotations

import re
from collections.abc import Callable

from taut.errors import UsageError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """A size such as 4G, 500MB, 4GiB or 1000000, in bytes: K, M, G, T are decimal, Ki, Mi, Gi, Ti binary. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    count = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if count < 1:
        raise UsageError(f"{text!r} is no size; write it as 4G or 4GB (10⁹ bytes each), 4GiB (2³⁰), 500M, or a number of bytes")
    return count


def show_bytes(count: int, rounded: Callable[[float], float] = round) -> str:
    """`count` in a fitting decimal unit with two decimals, `rounded` to the nearest, or by math.floor or math.ceil."""
    if count < 1000:
        return f"{count} B"
    power = min(4, (len(str(count)) - 1) // 3)
    if power < 4 and rounded(100 * count / 1000**power) >= 100_000:  # 999.999 kB are 1 MB
        power += 1
    return f"{rounded(100 * count / 1000**power) / 100:,.2f} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def counted(count: int, noun: str) -> str:
    """`count` with its noun, which takes an s unless there is one: "1 token", "2,048 tokens"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
