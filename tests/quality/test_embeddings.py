"""The figures of an encoder's quality against plain calculations."""

from __future__ import annotations

import numpy as np
import pytest

from taut.quality import embeddings


def cosines(vectors: np.ndarray) -> list[list[float]]:
    return [[float(a @ b / np.sqrt((a @ a) * (b @ b))) for b in vectors] for a in vectors]


def made(texts: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((texts, 6)).astype(np.float32)
    return reference, reference + np.float32(noise) * rng.standard_normal((texts, 6)).astype(np.float32)


def test_by_hand() -> None:
    reference, candidate = made(30, 0.3)
    found = embeddings.compare(reference, candidate)
    wanted, got = cosines(reference.astype(np.float64)), cosines(candidate.astype(np.float64))
    common = 0
    for text in range(30):
        others = [other for other in range(30) if other != text]
        nearest = [set(sorted(others, key=lambda other: -table[text][other])[:10]) for table in (wanted, got)]
        common += len(nearest[0] & nearest[1])
    assert found.neighbour_overlap == pytest.approx(common / 300)
    assert 0.5 < found.neighbour_overlap < 0.95
    pairs = [(i, j) for i in range(30) for j in range(i + 1, 30)]
    ranks = [np.argsort(np.argsort([table[i][j] for i, j in pairs])) for table in (wanted, got)]
    assert found.rank_correlation == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert (found.pairs, found.texts, found.neighbours) == (435, 30, 10)
    similarity = [
        float(a @ b / np.sqrt((a @ a) * (b @ b)))
        for a, b in zip(reference.astype(np.float64), candidate.astype(np.float64), strict=True)
    ]
    assert found.mean_cosine == pytest.approx(sum(similarity) / 30)
    assert found.least_cosine == pytest.approx(min(similarity))


def test_equal_models_up_to_length() -> None:
    reference, _ = made(40, 0)
    found = embeddings.compare(reference, 3 * reference)
    assert found.neighbour_overlap == 1
    assert found.rank_correlation == pytest.approx(1)
    assert found.least_cosine == pytest.approx(1)


def test_a_vector_of_zeros_is_like_nothing() -> None:
    reference, candidate = made(20, 0.1)
    candidate[4] = 0
    found = embeddings.compare(reference, candidate)
    assert found.least_cosine == 0
    assert np.isfinite(found.mean_cosine)
    assert embeddings.compare(reference, np.zeros_like(reference)).rank_correlation is None


def test_few_texts() -> None:
    reference, candidate = made(3, 0.1)
    found = embeddings.compare(reference, candidate)
    assert (found.neighbours, found.neighbour_overlap, found.pairs) == (2, 1, 3)


def test_many_pairs_are_thinned_to_a_fixed_sample() -> None:
    reference, candidate = made(500, 0.3)
    found = embeddings.compare(reference, candidate)
    assert embeddings.MOST_PAIRS / 2 < found.pairs <= embeddings.MOST_PAIRS
    assert found == embeddings.compare(reference, candidate)


def test_ranks_of_equal_values() -> None:
    a, b = np.array([1.0, 2, 2, 3]), np.array([1.0, 2, 3, 4])
    assert embeddings.spearman(a, b) == pytest.approx(np.corrcoef([1, 2.5, 2.5, 4], [1, 2, 3, 4])[0, 1])
    assert embeddings.spearman(b, -b) == pytest.approx(-1)
    assert embeddings.spearman(b, np.ones(4)) is None
