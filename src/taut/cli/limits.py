"""`taut limits`: what this machine can do at most."""

from __future__ import annotations

from typing import Annotated

from taut import env
from taut.cli import values
from taut.cli.console import flatten, print_json, print_table
from taut.cli.options import Json, option


def command(threads: Annotated[int | None, option(env.THREADS, values.whole(1))] = None, json: Json = False) -> None:
    """Measure what this machine can do at most: int8, bf16 and fp32 rates, and reading memory."""
    from taut.bench import limits

    measured = limits.measure(threads)
    if json:
        print_json(dict(measured))
    else:
        print_table([], flatten(measured))
