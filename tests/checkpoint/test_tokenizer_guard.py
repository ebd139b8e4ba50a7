"""Tokenizer files in use pass; patterns whose time explodes, and steps that multiply text, do not."""

from __future__ import annotations

import base64
import re
import time

import pytest

from taut.checkpoint.tokenizer_guard import explain_danger, explain_dangers

IN_USE = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r" ?[^(\s|.,!?…。，、।۔،)]+",
    r" {2,}",
    r"(ab)+",
    r"[(a+)+]",
    r"\(a+\)+",
]


@pytest.mark.parametrize("pattern", IN_USE)
def test_patterns_in_use_pass(pattern: str) -> None:
    assert explain_danger(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+", "(a*)*b", "(?:a|aa)+$", "(?:x(?:a+))*", "([ab]{2,})+", "((a|b))*", "(a+)*?", "(?=(a+)+)b", "[^]]*(a+)+"],
)
def test_explosive_patterns_do_not(pattern: str) -> None:
    assert explain_danger(pattern) is not None


def test_the_danger_is_real() -> None:
    """Python's engine backtracks as the tokenizers' does: 8 more characters take far more than 8 times as long."""

    def seconds(length: int) -> float:
        started = time.perf_counter()
        assert re.match("(a|aa)+$", "a" * length + "b") is None
        return time.perf_counter() - started

    assert seconds(26) > 10 * seconds(18)


def _replace(content: str, **pattern: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "normalizer",
    [
        None,
        _replace("▁", String=" "),
        _replace(" ", Regex=" {2,}"),
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, _replace("▁", String=" "), {"type": "NFKC"}]},
        _replace("x" * 100, String="y" * 50),
    ],
)
def test_steps_in_use_pass(normalizer: object) -> None:
    assert explain_dangers({"normalizer": normalizer}) is None


@pytest.mark.parametrize(
    "normalizer",
    [
        _replace("x" * 1000, String="a"),
        _replace("x" * 100, String=""),
        {"type": "Sequence", "normalizers": [_replace("aaaa", String="a")] * 5},
        {"type": "Prepend", "prepend": "x" * 1000},
        {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 100 + bytes(1)).decode()},
    ],
)
def test_steps_that_multiply_text_do_not(normalizer: object) -> None:
    assert explain_dangers({"normalizer": normalizer}) is not None
