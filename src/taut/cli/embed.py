"""`taut embed`: vectors of texts, or how alike they are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taut.cli import values
from taut.cli.console import checked_text, print_json, print_table, read_file, read_stdin, warn_of_file
from taut.cli.options import Json, ModelOptions, ModelRef, plain
from taut.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL_LEN = 40


def command(
    model: ModelRef,
    model_options: ModelOptions,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts; a single - reads them from stdin, one a line.")
    ] = None,
    file: Annotated[
        Path | None, plain("--file", "Read the texts from a file, one a line; empty lines are skipped.", {"metavar": "FILE"})
    ] = None,
    similarity: Annotated[
        bool, plain("--similarity", "Print the cosine of every pair instead of vectors.", values.switch())
    ] = False,
    truncate: Annotated[
        bool, plain("--truncate", "Cut texts that are too long for the model instead of refusing them.", values.switch())
    ] = False,
    json: Json = False,
) -> None:
    """Embed texts: one JSON object a line, text and embedding; with --similarity a table of cosines (a matrix with --json)."""
    texts = _texts(model, texts or [], file)
    loaded = model_options.load(model)
    if loaded.kind != "encoder":
        raise UsageError(f"{loaded.name} is a decoder and does not embed; it can `taut generate` and `taut chat`")
    vectors = loaded.embed(texts, truncate=truncate)  # (texts, embedding_dim)
    if not similarity:
        for text, vector in zip(texts, vectors, strict=True):
            print_json({"text": text, "embedding": vector.tolist()})
        return
    cosines = _cosines(vectors)
    if json:
        print_json({"texts": texts, "similarity": cosines.tolist()})
    else:
        _print_cosines(texts, cosines)


def _texts(model: str, given: list[str], file: Path | None) -> list[str]:
    if given and file is not None:
        raise UsageError("texts and --file are both given; give one of them")
    if "-" in given and len(given) > 1:
        raise UsageError("- reads the texts from stdin and stands alone; leave it out, or the other texts")
    if given == ["-"] or str(file) == "-":
        texts = _lines(read_stdin(), "stdin")
    elif file is not None:
        texts = _lines(read_file(file), str(file))
    else:
        texts = [checked_text(text) for text in given]
        for text in texts:
            warn_of_file(text, f"to embed its lines: taut embed {model} --file {shlex.quote(text)}")
    if not texts or not all(texts):
        what = "an empty text is given" if texts else "no text is given"
        raise UsageError(f"{what}; give texts of at least one character, - to read them from stdin, or --file FILE")
    return texts


def _lines(text: str, name: str) -> list[str]:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise UsageError(f"{name} holds no text; write one text a line")
    return lines


def _cosines(vectors: NDArray[np.float32]) -> Any:
    import numpy as np

    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # (texts, embedding_dim)
    return unit @ unit.T  # (texts, texts)


def _print_cosines(texts: list[str], cosines: Any) -> None:
    labels = [f"{number} {text[:LABEL_LEN]}{'…' if len(text) > LABEL_LEN else ''}" for number, text in enumerate(texts, 1)]
    rows = [[label, *(f"{value:.3f}" for value in row)] for label, row in zip(labels, cosines, strict=True)]
    print_table(["", *(str(number) for number in range(1, len(texts) + 1))], rows)
