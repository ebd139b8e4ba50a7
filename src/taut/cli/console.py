"""What the commands print besides their result: progress bars, tables, one-line errors. rich is imported only when it is used."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from taut.errors import UsageError
from taut.units import show_bytes

Report = Callable[[str, int, int], None]
MIN_WIDTH = 60  # of tables: a narrower terminal wraps their lines, which is easier to read than columns of one letter


def read_stdin() -> str:
    """All of stdin as text. Raises UsageError when it is not UTF-8."""
    return _decoded(sys.stdin.buffer.read(), "stdin")


def read_file(path: Path) -> str:
    """A whole text file. Raises UsageError when it cannot be read or is not UTF-8."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}; give the path of a text file") from None
    return _decoded(data, repr(str(path)))


def _decoded(data: bytes, name: str) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8 text: byte {error.start + 1:,} is 0x{error.object[error.start]:02x}; "
            "convert it first, as with: iconv -f LATIN1 -t UTF-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_writable(path: Path) -> None:
    """UsageError when a file could not be written there; nothing is left behind, and what is there stays as it is."""
    was_there = os.path.lexists(path)
    try:
        with path.open("ab"):
            pass
        if not was_there:
            path.unlink()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"cannot write {str(path)!r}: {reason}; give a file in a folder that exists and may be written"
        ) from None


def checked_text(text: str) -> str:
    """A text of the command line. Raises UsageError when its bytes were not UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:  # the interpreter keeps such a byte as half of a surrogate pair
        raise UsageError(
            f"the text {text[:20]!r} is not UTF-8: character {error.start + 1:,} is a stray byte; give it as UTF-8"
        ) from None
    return text


def print_json(value: Any) -> None:
    """`value` on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def print_note(text: str) -> None:
    """A remark on stderr, so that stdout holds the result alone; dim on a terminal."""
    print(f"\033[2m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def warn_of_file(text: str, advice: str) -> None:
    """A warning when a text that was given is the path of a file, whose content may have been meant."""
    if os.path.isfile(text):
        print_note(f"warning: {text!r} is taken as a text, though it is also a file; {advice}")


def print_error(text: str) -> None:
    """One clear message on stderr."""
    print(f"\033[31merror:\033[0m {text}" if sys.stderr.isatty() else f"error: {text}", file=sys.stderr, flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout; all columns but the first are aligned to the right. No header when `header` is empty."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE, show_header=bool(header), pad_edge=False)
    for number in range(len(header) or len(rows[0])):
        name = header[number] if header else ""
        table.add_column(name, justify="right" if number and header else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # plain text: names may look like markup
    console = Console()
    console.print(table, width=max(console.width, MIN_WIDTH))


def flatten(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested `values` as rows of (dotted name, text); sizes in bytes are shown as such."""
    rows: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            rows += flatten(value, f"{prefix}{name}.")
        elif name.endswith("_bytes") and isinstance(value, int):
            rows.append((prefix + name.removesuffix("_bytes"), show_bytes(value)))
        elif isinstance(value, list):
            rows.append((prefix + name, ", ".join(map(str, value)) or "none"))
        elif value is None:
            rows.append((prefix + name, "–"))
        else:
            rows.append((prefix + name, f"{value:.4g}" if isinstance(value, float) else str(value)))
    return rows


@contextmanager
def progress() -> Iterator[Report | None]:
    """A function `report(stage, done, total)` that shows a bar per stage on stderr while the block runs; None when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), *times)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
