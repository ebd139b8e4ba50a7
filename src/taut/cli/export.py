"""`taut export`: an artefact in a format that other engines load."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from taut.cli import values
from taut.cli.options import plain


def command(
    artefact: Annotated[Path, typer.Argument(metavar="ARTEFACT", help="A folder that taut quantize made.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder or .gguf file to make; it must not be there.")],
    to: Annotated[str, plain("--to", "The format.", values.one_of(("compressed-tensors", "gguf")))],
) -> None:
    """Export an artefact for other engines: compressed-tensors (vLLM), gguf (llama.cpp). What a format cannot hold is refused."""
    from taut.compress.export import export

    print(export(artefact, out, to))
