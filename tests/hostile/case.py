"""One malformed model and the error that it must give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from taut import checkpoint
from taut.errors import ModelFormatError, TautError


def open_it(path: Path) -> None:
    checkpoint.open(str(path)).close()


def read_all(path: Path) -> None:
    with checkpoint.open(str(path)) as opened:
        for name in opened.tensors:
            opened.read(name)


def render(path: Path) -> None:
    with checkpoint.open(str(path)) as opened:
        assert opened.chat_template is not None
        opened.chat_template.render([{"role": "user", "content": "hello"}])


@dataclass(frozen=True)
class Case:
    """`write` puts the files into an empty folder and returns what to open; `act` must then raise `error` with
    `message` in its text.

    `rule` names the public bug report (A1 …, B1 …) or the loader's rule that it replays.
    """

    name: str
    rule: str
    write: Callable[[Path], Path]
    message: str
    error: type[TautError] = ModelFormatError
    act: Callable[[Path], None] = open_it
