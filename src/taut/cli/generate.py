"""`taut generate`: continue a text."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from taut.cli.console import print_json, print_note
from taut.cli.options import Json, ModelOptions, ModelRef, SamplingOptions
from taut.errors import UsageError


def command(
    model: ModelRef,
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads it from stdin.")],
    model_options: ModelOptions,
    sampling: SamplingOptions,
    json: Json = False,
) -> None:
    """Continue a text as it stands, without a chat template. The continuation goes to stdout, speed to stderr."""
    from taut.cli.turn import Turn

    text = sys.stdin.read() if prompt == "-" else prompt
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
