"""How far a model's next-token distributions are from a reference's: mean KL divergence, top-1 agreement, perplexity.

Knows logits, not models: what produces them is handed in. KL(reference || candidate) is the expected extra nats per token of
coding the reference's samples by the candidate; it is the figure by which every precision choice is judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Logits = Callable[[Ints], Floats]
_ROWS = 64  # positions compared at a time: copies of all of them would need gigabytes


@dataclass(frozen=True)
class Quality:
    """Over `tokens` positions of `windows` texts. `kl` in nats per token; `top1` is the share of equal most likely tokens."""

    kl: float
    top1: float
    perplexity: float
    reference_perplexity: float
    windows: int
    tokens: int

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def log_softmax(logits: Floats) -> Floats:
    """(rows, vocab) -> log probabilities. float32, sums in float64: the rounding (1e-6 nats) is far below any divergence of interest."""
    x: Floats = logits - logits.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True, dtype=np.float64)).astype(np.float32)
    return x


def measure(reference: Logits, candidate: Logits, windows: Iterable[Ints]) -> Quality:
    """Compare two models on token windows. Each is a function (T,) ids -> (T, vocab) logits; a window counts all its positions.

    Perplexity is exp of the mean over windows of the mean negative log likelihood of tokens 1..T-1.
    """
    kl, agree, tokens, count = 0.0, 0, 0, 0
    nll, reference_nll = 0.0, 0.0
    for ids in windows:
        for first, p, q in _pairs(reference(ids), candidate(ids)):
            kl += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
            agree += int((p.argmax(-1) == q.argmax(-1)).sum())
            following = ids[first + 1 : first + 1 + len(p)]  # the last position has no next token
            at = np.arange(len(following))
            reference_nll -= float(p[at, following].sum(dtype=np.float64)) / (len(ids) - 1)
            nll -= float(q[at, following].sum(dtype=np.float64)) / (len(ids) - 1)
        tokens += len(ids)
        count += 1
    if not count:
        raise ValueError("no windows to compare")
    return Quality(kl / tokens, agree / tokens, math.exp(nll / count), math.exp(reference_nll / count), count, tokens)


def _pairs(reference: Floats, candidate: Floats) -> Iterator[tuple[int, Floats, Floats]]:
    """(first row, reference log probabilities, candidate's) of a few rows at a time."""
    assert reference.shape == candidate.shape, f"{reference.shape} and {candidate.shape} logits"
    for first in range(0, len(reference), _ROWS):
        rows = slice(first, first + _ROWS)
        yield first, log_softmax(reference[rows]), log_softmax(candidate[rows])


def cosine(a: Floats, b: Floats) -> NDArray[np.float64]:
    """(rows, dim) twice -> (rows,) cosine similarities, for judging embeddings. A zero vector's is 0."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    similarity: NDArray[np.float64] = np.divide((x * y).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)
    return similarity
