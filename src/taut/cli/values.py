"""What the command line accepts as a value of each kind of option; a refusal names what was given and what is accepted.

The parsers are ours because the option library's own messages change with its version.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import typer

from taut import units
from taut.errors import UsageError

Parser = Callable[[Any], Any]


def whole(least: int | None = None, most: int | None = None) -> dict[str, Any]:
    """Settings of an option for whole numbers from `least` to `most`."""
    return _settings("N", _number(int, "a whole number", least, most))


def number(least: float | None = None, most: float | None = None) -> dict[str, Any]:
    """Settings of an option for numbers from `least` to `most`."""
    return _settings("X", _number(float, "a number", least, most))


def one_of(choices: Sequence[str]) -> dict[str, Any]:
    """Settings of an option for one of `choices`."""

    def parse(given: str) -> str:
        return given if given in choices else _refuse(given, " or ".join(choices))

    return _settings("|".join(choices), parse)


def size() -> dict[str, Any]:
    """Settings of an option for sizes such as 4GiB, in bytes."""

    def parse(given: str) -> int:
        try:
            return units.parse_bytes(given)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from None

    return _settings("SIZE", parse)


def text(metavar: str = "TEXT") -> dict[str, Any]:
    """Settings of an option for text of at least one character."""
    return _settings(metavar, lambda given: given or _refuse(given, "text of at least one character"))


def switch() -> dict[str, Any]:
    """Settings of a flag that takes no value."""
    return {"metavar": ""}


def _settings(metavar: str, parse: Parser) -> dict[str, Any]:
    # A default passes through the parser too, as what it is.
    return {"metavar": metavar, "parser": lambda given: parse(given) if isinstance(given, str) else given}


def _number(kind: Callable[[str], float], name: str, least: float | None, most: float | None) -> Parser:
    accepted = name
    if least is not None:
        accepted += f" of at least {least:g}" if most is None else f" from {least:g} to {most:g}"

    def parse(given: str) -> Any:
        try:
            value = kind(given)
        except ValueError:
            return _refuse(given, accepted)
        is_in_range = math.isfinite(value) and (least is None or value >= least) and (most is None or value <= most)
        return value if is_in_range else _refuse(given, accepted)

    return parse


def _refuse(given: str, accepted: str) -> Any:
    raise typer.BadParameter(f"{given!r} is given; {accepted} is accepted")
