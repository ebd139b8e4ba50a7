"""`taut embed`: vectors of texts, or how alike they are."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from taut.cli.console import print_json, print_table
from taut.cli.options import Json, ModelOptions, ModelRef
from taut.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LABEL_LEN = 40


def command(
    model: ModelRef,
    texts: Annotated[list[str], typer.Argument(metavar="TEXT…", help="Texts; a single - reads one a line from stdin.")],
    model_options: ModelOptions,
    similarity: Annotated[
        bool, typer.Option("--similarity", help="Print the cosine of every pair instead of vectors.")
    ] = False,
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut texts that are too long instead of refusing them.")] = False,
    json: Json = False,
) -> None:
    """Embed texts. Prints one JSON object a line: text and embedding; with --similarity a table (--json: a matrix)."""
    if texts == ["-"]:
        texts = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if not texts or not all(texts):
        raise UsageError("an empty text cannot be embedded; give at least one word")
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


def _cosines(vectors: NDArray[np.float32]) -> Any:
    import numpy as np

    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # (texts, embedding_dim)
    return unit @ unit.T  # (texts, texts)


def _print_cosines(texts: list[str], cosines: Any) -> None:
    labels = [f"{number} {text[:LABEL_LEN]}{'…' if len(text) > LABEL_LEN else ''}" for number, text in enumerate(texts, 1)]
    rows = [[label, *(f"{value:.3f}" for value in row)] for label, row in zip(labels, cosines, strict=True)]
    print_table(["", *(str(number) for number in range(1, len(texts) + 1))], rows)
