"""The sampler: filters, determinism, and odd temperatures (bug reports D6 and H7)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from taut.engine.sampler import RowChoice, sample, uniform
from taut.errors import NumericalError

LOGITS = np.array([0.0, 2.0, 1.0, 2.0, -5.0], np.float32)


def draws(row: dict[str, float], count: int = 4000) -> Counter[int]:
    return Counter(sample(LOGITS, RowChoice(position=i, **row)) for i in range(count))  # type: ignore[arg-type]


def test_greedy_takes_the_first_of_equals() -> None:
    assert sample(LOGITS, RowChoice()) == 1


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 1e-8])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    assert set(draws({"temperature": temperature}, 200)) <= {1, 3}


def test_frequencies_follow_the_softmax() -> None:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = draws({"temperature": 1.0}, 20_000)
    for token, probability in enumerate(p):
        assert abs(counts[token] / 20_000 - probability) < 0.015


def test_huge_temperature_is_uniform() -> None:
    assert len(draws({"temperature": 1e30})) == 5


def test_filters() -> None:
    assert set(draws({"temperature": 1.0, "top_k": 2})) == {1, 3}
    assert set(draws({"temperature": 1.0, "top_k": 1})) == {1}
    assert set(draws({"temperature": 1.0, "top_p": 1e-9})) == {1}
    assert set(draws({"temperature": 1.0, "top_p": 0.0})) == {1}
    assert set(draws({"temperature": 1.0, "top_p": 0.5})) == {1, 3}
    assert set(draws({"temperature": 1.0, "min_p": 0.3})) == {1, 2, 3}
    assert set(draws({"temperature": 1.0, "min_p": 1.0})) == {1, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_an_error(bad: float) -> None:
    logits = LOGITS.copy()
    logits[2] = bad
    for temperature in (0.0, 1.0):
        with pytest.raises(NumericalError):
            sample(logits, RowChoice(temperature=temperature))


def test_counter_randomness() -> None:
    values = [uniform(s, c, p) for s in range(20) for c in range(5) for p in range(50)]
    assert len(set(values)) == len(values) and all(0 <= v < 1 for v in values)
    assert abs(np.mean(values) - 0.5) < 0.01 and abs(np.std(values) - 12**-0.5) < 0.01
    assert uniform(7, 1, 3) == uniform(7, 1, 3)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
