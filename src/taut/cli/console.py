"""What the commands print besides their result: progress bars, tables, one-line errors. rich is imported only when it is used."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Report = Callable[[str, int, int], None]


def print_json(value: Any) -> None:
    """`value` on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def print_note(text: str) -> None:
    """A remark on stderr, so that stdout holds the result alone; dim on a terminal."""
    print(f"\033[2m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


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
    Console().print(table)


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


def show_bytes(count: int) -> str:
    """`count` in a fitting decimal unit."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"


@contextmanager
def progress() -> Iterator[Report | None]:
    """A function `report(stage, done, total)` that shows a bar per stage on stderr while the block runs; None when that is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
