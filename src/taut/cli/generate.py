"""`taut generate`: continue a text."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

from taut.cli.console import checked_text, print_json, print_note, read_stdin, warn_of_file
from taut.cli.options import Json, ModelOptions, ModelRef, SamplingOptions
from taut.errors import UsageError


def command(
    model: ModelRef,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads it from stdin.")],
    model_options: ModelOptions,
    sampling: SamplingOptions,
    json: Json = False,
) -> None:
    """Continue a text as it stands, without a chat template. The text goes to stdout, the speed to stderr."""
    from taut.cli.turn import Turn

    if prompt == "-":
        text = read_stdin()
    else:
        text = checked_text(prompt)
        warn_of_file(text, f"to continue its content: taut generate {model} - < {shlex.quote(text)}")
    loaded = model_options.load(model)
    if loaded.kind != "decoder":
        raise UsageError(f"{loaded.name} is an encoder and does not generate; it can `taut embed`")
    if loaded.tokenizer is None:
        raise UsageError(f"{loaded.name} has no tokenizer, so it cannot read text")
    turn = Turn(loaded, sampling.request(loaded, "generate", loaded.tokenizer.encode(text)))
    pieces: list[str] = []
    for piece in turn:
        pieces.append(piece)
        if not json:
            print(piece, end="", flush=True)
    if json:
        print_json({"text": "".join(pieces), **turn.report()})
    else:
        print(flush=True)
        print_note(turn.summary())
