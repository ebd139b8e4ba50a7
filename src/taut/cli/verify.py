"""`taut verify`: whether an artefact is what its receipt says, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taut.cli import values
from taut.cli.console import print_json, print_table, progress
from taut.cli.options import Json, plain
from taut.errors import VerificationError


def command(
    artefact: Annotated[Path, typer.Argument(metavar="ARTEFACT", help="A folder that taut quantize made.")],
    threads: Annotated[
        int | None, plain("--threads", "Compute threads; default what the machine allows.", values.whole(1))
    ] = None,
    json: Json = False,
) -> None:
    """Check that an artefact is what its receipt says, and computes here what it computed where it was made.

    Exit code 6 when it is not.
    """
    from taut.compress.verify import verify

    with progress() as report:
        checks = verify(artefact, threads=threads, progress=report)
    if json:
        print_json([{"name": check.name, "passed": check.passed, "detail": check.detail} for check in checks])
    else:
        print_table(["check", "", ""], [[check.name, "✓" if check.passed else "✗", check.detail] for check in checks])
    if failed := [check for check in checks if not check.passed]:
        raise VerificationError(f"{artefact} is not what its receipt says: {failed[0].name}: {failed[0].detail}")
