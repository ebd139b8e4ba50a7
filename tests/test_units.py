"""Sizes and counts, read and written."""

from __future__ import annotations

import math

import pytest

from taut.errors import UsageError
from taut.units import counted, parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000), ("7B", 7), ("4G", 4 * 10**9), ("4g", 4 * 10**9), ("4GB", 4 * 10**9), ("4Gi", 4 * 2**30), ("4GiB", 4 * 2**30),
        ("500MB", 500 * 10**6), ("500m", 500 * 10**6), ("64K", 64_000), ("2 KiB", 2048), ("1.5g", 1_500_000_000), ("1T", 10**12),
    ],
)  # fmt: skip
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", " ", "x", "4QB", "-1", "4 i", "1e9", "GiB", "0", "0.0001", "inf", "9" * 400])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"write it as 4G or 4GB .* 4GiB .* 500M, or a number of bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (58_490_000, "58.49 MB"), (999_994, "999.99 kB"), (999_999, "1.00 MB"),
        (999_999_999, "1.00 GB"), (25_266_000_000, "25.27 GB"), (5 * 10**15, "5,000.00 TB"),
    ],
)  # fmt: skip
def test_shown(count: int, shown: str) -> None:
    assert show_bytes(count) == shown


def test_a_limit_is_never_shown_larger_nor_a_need_smaller() -> None:
    assert show_bytes(25_268_000_000, math.floor) == "25.26 GB"
    assert show_bytes(25_261_000_000, math.ceil) == "25.27 GB"


def test_counted() -> None:
    assert [counted(n, "token") for n in (0, 1, 2, 2048)] == ["0 tokens", "1 token", "2 tokens", "2,048 tokens"]
