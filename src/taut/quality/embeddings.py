"""How far an encoder's vectors are from a reference's: their cosines, and whether they still rank texts alike.

Knows vectors, not models. A retrieval system sees ranks only, so those are judged beside the cosines.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.quality.kl import Floats, cosine

Doubles = NDArray[np.float64]
NEIGHBOURS = 10
MOST_PAIRS = 20_000  # whose ranks are compared; of more, every n-th is taken


@dataclass(frozen=True)
class EmbeddingFigures:
    """`neighbour_overlap`: the mean share of each text's nearest `neighbours` other texts that both models name. `rank_correlation`:
    Spearman's, between the two models' similarities of `pairs` pairs of texts; None where one model finds all pairs equally alike.
    """

    mean_cosine: float
    least_cosine: float
    neighbour_overlap: float
    neighbours: int
    rank_correlation: float | None
    pairs: int
    texts: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(reference: Floats, candidate: Floats) -> EmbeddingFigures:
    """Two models' vectors (texts, dim) of the same texts, at least three."""
    assert reference.shape == candidate.shape and len(reference) >= 3, f"{reference.shape} and {candidate.shape} vectors"
    similarity = cosine(reference, candidate)
    wanted, found = _similarities(reference), _similarities(candidate)  # (texts, texts)
    neighbours = min(NEIGHBOURS, len(reference) - 1)
    pairs = _sample(len(reference))
    return EmbeddingFigures(
        mean_cosine=float(similarity.mean()),
        least_cosine=float(similarity.min()),
        neighbour_overlap=neighbour_overlap(wanted, found, neighbours),
        neighbours=neighbours,
        rank_correlation=spearman(wanted[pairs], found[pairs]),
        pairs=len(pairs[0]),
        texts=len(reference),
    )


def neighbour_overlap(reference: Doubles, candidate: Doubles, neighbours: int) -> float:
    """The mean share of common texts among the `neighbours` most similar others, from two (texts, texts) similarities. Of equally similar
    ones the first counts.
    """
    wanted, found = _nearest(reference, neighbours), _nearest(candidate, neighbours)  # (texts, neighbours)
    return float((wanted[:, :, None] == found[:, None, :]).any(-1).mean())


def spearman(a: Doubles, b: Doubles) -> float | None:
    """Rank correlation of two (n,) arrays; equal values share their mean rank. None when one array is constant."""
    x, y = _ranks(a), _ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale if scale else None


def _similarities(vectors: Floats) -> Doubles:
    x = vectors.astype(np.float64)
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    unit = np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
    similarity: Doubles = unit @ unit.T
    return similarity


def _nearest(similarity: Doubles, neighbours: int) -> NDArray[np.int64]:
    others = similarity.copy()
    np.fill_diagonal(others, -np.inf)
    return np.argsort(-others, axis=1, kind="stable")[:, :neighbours]


def _sample(texts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of pairs, the same ones every time."""
    rows, columns = np.triu_indices(texts, 1)
    step = -(-len(rows) // MOST_PAIRS)
    return rows[::step], columns[::step]


def _ranks(values: Doubles) -> Doubles:
    _, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: Doubles = (np.cumsum(counts) - (counts - 1) / 2)[number]
    return ranks
