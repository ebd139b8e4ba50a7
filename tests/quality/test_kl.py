from __future__ import annotations

import numpy as np
import pytest

from taut.quality import kl
from taut.quality.kl import Floats, Ints, Logits

VOCAB = 7


def fixed(logits: Floats) -> Logits:
    return lambda ids: logits[: len(ids)]


def uniform(ids: Ints) -> Floats:
    return np.zeros((len(ids), VOCAB), np.float32)


def test_equal_models() -> None:
    logits = np.random.default_rng(0).standard_normal((100, VOCAB)).astype(np.float32)
    windows = [np.arange(100, dtype=np.int32) % VOCAB, np.zeros(50, np.int32)]
    # A constant added to a row's logits changes no probability.
    result = kl.measure(fixed(logits), fixed(logits + np.float32(3)), windows)
    assert result.kl == pytest.approx(0, abs=1e-6)
    assert result.top1 == 1
    assert result.perplexity == pytest.approx(result.reference_perplexity, rel=1e-6)
    assert (result.windows, result.tokens) == (2, 150)


def test_against_a_hand_calculation() -> None:
    p = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    q = np.array([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]])
    ids = np.array([0, 1], np.int32)
    result = kl.measure(fixed(np.log(p).astype(np.float32)), fixed(np.log(q).astype(np.float32)), [ids])
    assert result.kl == pytest.approx(float((p * np.log(p / q)).sum()) / 2, rel=1e-5)
    assert result.top1 == 0.5
    assert result.reference_perplexity == pytest.approx(4, rel=1e-5)  # p(1) at position 0 is 0.25
    assert result.perplexity == pytest.approx(2, rel=1e-5)


def test_rows_beyond_one_part_are_all_counted() -> None:
    ids = np.arange(200, dtype=np.int32) % VOCAB
    skewed = np.zeros((200, VOCAB), np.float32)
    skewed[199, 3] = 5.0
    assert kl.measure(uniform, fixed(skewed), [ids]).kl > 0
    assert kl.measure(uniform, uniform, [ids]).perplexity == pytest.approx(VOCAB)


def test_no_windows() -> None:
    with pytest.raises(ValueError, match="no windows"):
        kl.measure(uniform, uniform, [])


def test_cosine() -> None:
    a = np.array([[1, 0], [1, 1], [0, 0]], np.float32)
    b = np.array([[2, 0], [1, -1], [1, 0]], np.float32)
    np.testing.assert_allclose(kl.cosine(a, b), [1, 0, 0], atol=1e-12)
