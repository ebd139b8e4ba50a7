"""Golden logits: what an artefact answers to a fixed text, kept in it, so that another machine can tell that it computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.api import Model
from taut.compress.artefact import GOLDEN
from taut.errors import ModelFormatError

TEXT = (
    "A measurement without its conditions is a number, not a fact. The quick brown fox jumps over the lazy dog, 0123456789 times; "
    "def f(x): return x + 1"
)
MAX_TOKENS = 48
MAX_BYTES = 64 << 20


def answer(model: Model, ids: list[int] | None = None) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """(token ids, the answer): a decoder's logits at the last position, an encoder's embedding."""
    limit = min(MAX_TOKENS, model.context_len)
    if ids is None:
        tokens = model.tokenizer.encode(TEXT) if model.tokenizer is not None else list(range(1, limit))
        vocab = model.loaded.built.vocab_size
        ids = [token % vocab for token in tokens[:limit]]
    if model.kind == "decoder":
        return np.array(ids, np.int32), model.logits(ids)[-1]
    return np.array(ids, np.int32), model.embed_ids([ids])[0]


def write(folder: Path, ids: NDArray[np.int32], values: NDArray[np.float32]) -> None:
    with (folder / GOLDEN).open("wb") as file:
        np.savez(file, ids=ids, values=values)


def read(folder: Path, vocab_size: int) -> tuple[list[int], NDArray[np.float32]]:
    """ModelFormatError for a file that is missing or damaged."""
    path = folder / GOLDEN
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("too large")
        with np.load(path, allow_pickle=False) as stored:
            ids, values = stored["ids"], stored["values"]
        if (
            ids.ndim != 1
            or values.ndim != 1
            or ids.dtype != np.int32
            or values.dtype != np.float32
            or not 0 < len(ids) <= MAX_TOKENS
        ):
            raise ValueError("not ids and values")
        if ids.min() < 0 or ids.max() >= vocab_size:
            raise ValueError("ids beyond the vocabulary")
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise ModelFormatError(f"is missing or damaged ({error}); quantize the model again", file=GOLDEN) from None
    return ids.tolist(), values


def compare(stored: NDArray[np.float32], now: NDArray[np.float32]) -> dict[str, Any]:
    """Whether the answers are equal bit for bit, and how far they are apart."""
    same = stored.shape == now.shape and bool(np.array_equal(stored.view(np.uint32), now.view(np.uint32)))
    distance = float(np.abs(stored - now).max()) if stored.shape == now.shape else float("inf")
    return {
        "same_bits": same,
        "largest_difference": distance,
        "same_top1": stored.shape == now.shape and int(stored.argmax()) == int(now.argmax()),
    }
