"""`taut export`: an artefact in a format that other engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taut.cli import values
from taut.cli.console import print_note
from taut.cli.options import plain
from taut.units import counted


def command(
    artefact: Annotated[Path, typer.Argument(metavar="ARTEFACT", help="A folder that taut quantize made.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder or .gguf file to make; it must not be there.")],
    to: Annotated[str, plain("--to", "The format.", values.one_of(("compressed-tensors", "gguf")))],
) -> None:
    """Export an artefact for other engines: compressed-tensors (vLLM), gguf (llama.cpp). What a format cannot hold is refused."""
    from taut.compress.exporting import export

    made = export(artefact, out, to)
    print(f"{made.path}: " + ", ".join(f"{counted(count, 'weight')} as {name}" for name, count in made.formats.items()))
    if made.widened:
        print_note(f"{counted(len(made.widened), 'weight')} became floats, as readers expect: {', '.join(made.widened[:4])}")
