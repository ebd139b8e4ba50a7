"""A scripted model for what runs models: its logits are a table's rows, its vectors count characters."""

from __future__ import annotations

import types
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

VOCAB = 128


class Tokenizer:
    """One id per character below 128; the others are 0."""

    bos_id: int | None = 1
    vocab_size = VOCAB

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [(ord(c) + self.shift) % VOCAB if ord(c) < VOCAB else 0 for c in text]


class ScriptedModel:
    """`noise` is how far it is from the model without noise."""

    def __init__(
        self,
        noise: float = 0.0,
        kind: Literal["decoder", "encoder"] = "decoder",
        *,
        context_len: int = 256,
        vocab_size: int = VOCAB,
        tokenizer: Tokenizer | None = None,
        precision: str = "int8",
    ) -> None:
        rng = np.random.default_rng(5)
        base, change = rng.standard_normal((2, vocab_size, vocab_size)).astype(np.float32)
        self.table = base + np.float32(noise) * change  # (vocab, vocab): the logits behind each token
        self.name, self.kind, self.context_len = "scripted", kind, context_len
        self.tokenizer: Tokenizer | None = tokenizer or Tokenizer()
        self.embedding_dim = vocab_size if kind == "encoder" else None
        self.closed = False
        self.num_logits = 0
        self.loaded = types.SimpleNamespace(
            built=types.SimpleNamespace(vocab_size=vocab_size),
            checkpoint=types.SimpleNamespace(ref="some/scripted"),
            config=types.SimpleNamespace(threads=2, executor="native"),
            describe_precision=lambda: precision,
        )

    def encode_text(self, text: str, *, truncate: bool = False) -> list[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text)[: self.context_len]

    def logits(self, ids: list[int]) -> NDArray[np.float32]:
        assert 0 < len(ids) <= self.context_len
        self.num_logits += 1
        return self.table[ids]

    def embed(self, texts: list[str], *, truncate: bool = False) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = np.stack([self.table[self.encode_text(text)].mean(0) for text in texts])
        return vectors

    def close(self) -> None:
        self.closed = True


class Reports(list[tuple[str, int, int]]):
    """A progress function that keeps what it was told."""

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.append((stage, done, total))


def load_returning(seen: list[Any], *models: ScriptedModel) -> Any:
    """A stand-in for api.load: gives `models` in turn; `seen` keeps (ref, options)."""
    left = list(models)

    def load(ref: str, **options: Any) -> ScriptedModel:
        options.pop("progress", None)
        seen.append((ref, options))
        return left.pop(0)

    return load
