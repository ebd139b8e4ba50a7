"""How far a model's next-token distributions are from a reference's: mean KL divergence, top-1 agreement, perplexity.

Knows logits, not models: what produces them is handed in. KL(reference || candidate) is the expected extra nats per token of
coding the reference's samples by the candidate; it is the figure by which every precision choice is judged. More figures: figures.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from taut.quality.figures import figures
from taut.quality.positions import Floats, Ints, compare, join, log_softmax

__all__ = ["Floats", "Ints", "Logits", "Quality", "cosine", "log_softmax", "measure"]

Logits = Callable[[Ints], Floats]


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


def measure(reference: Logits, candidate: Logits, windows: Iterable[Ints]) -> Quality:
    """Compare two models on token windows. Each is a function (T,) ids -> (T, vocab) logits; a window counts all its positions.

    Perplexity is exp of the mean negative log likelihood of every window's tokens 1..T-1.
    """
    compared = [compare(reference(ids), candidate(ids), ids, number) for number, ids in enumerate(windows)]
    if not compared:
        raise ValueError("no windows to compare")
    found = figures(join(compared))
    return Quality(found.kl, found.top1, found.perplexity, found.reference_perplexity, found.windows, found.tokens)


def cosine(a: Floats, b: Floats) -> NDArray[np.float64]:
    """(rows, dim) twice -> (rows,) cosine similarities, for judging embeddings. A zero vector's is 0."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=-1) * np.linalg.norm(y, axis=-1)
    similarity: NDArray[np.float64] = np.divide((x * y).sum(-1), norms, out=np.zeros_like(norms), where=norms > 0)
    return similarity
