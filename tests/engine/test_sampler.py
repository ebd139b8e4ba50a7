"""The sampler, numpy's and the native one: filters, determinism, and odd temperatures (bug reports D6 and H7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from taut.engine.sampler import RowChoice, sample_rows, uniform
from taut.errors import NumericalError
from taut.kernels import native

LOGITS = np.array([0.0, 2.0, 1.0, 2.0, -5.0], np.float32)
Sampler = Callable[[np.ndarray, Sequence[RowChoice]], list[int | NumericalError]]


def native_sampler(threads: int = 2, isa: str = "") -> Sampler:
    from taut.engine.runtime import Runtime

    return Runtime(threads, isa).sample


@pytest.fixture(params=["numpy", "native"])
def sampler(request: pytest.FixtureRequest) -> Sampler:
    if request.param == "numpy":
        return sample_rows
    if not native.is_built():
        pytest.skip("the native core is not built")
    return native_sampler()


def draws(sampler: Sampler, row: dict[str, float], count: int = 4000) -> Counter[int]:
    rows = [RowChoice(position=i, **row) for i in range(count)]  # type: ignore[arg-type]
    return Counter(sampler(np.tile(LOGITS, (count, 1)), rows))  # type: ignore[arg-type]


def test_greedy_takes_the_first_of_equals(sampler: Sampler) -> None:
    assert sampler(LOGITS[None], [RowChoice()]) == [1]
    assert sampler(np.empty((0, 5), np.float32), []) == []


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-4, 1e-8])
def test_tiny_temperature_is_greedy(sampler: Sampler, temperature: float) -> None:
    assert set(draws(sampler, {"temperature": temperature}, 200)) <= {1, 3}


def test_frequencies_follow_the_softmax(sampler: Sampler) -> None:
    p = np.exp(LOGITS) / np.exp(LOGITS).sum()
    counts = draws(sampler, {"temperature": 1.0}, 20_000)
    for token, probability in enumerate(p):
        assert abs(counts[token] / 20_000 - probability) < 0.015


def test_huge_temperature_is_uniform(sampler: Sampler) -> None:
    assert len(draws(sampler, {"temperature": 1e30})) == 5


def test_filters(sampler: Sampler) -> None:
    assert set(draws(sampler, {"temperature": 1.0, "top_k": 2})) == {1, 3}
    assert set(draws(sampler, {"temperature": 1.0, "top_k": 1})) == {1}
    assert set(draws(sampler, {"temperature": 1.0, "top_p": 1e-9})) == {1}
    assert set(draws(sampler, {"temperature": 1.0, "top_p": 0.0})) == {1}
    assert set(draws(sampler, {"temperature": 1.0, "top_p": 0.5})) == {1, 3}
    assert set(draws(sampler, {"temperature": 1.0, "min_p": 0.3})) == {1, 2, 3}
    assert set(draws(sampler, {"temperature": 1.0, "min_p": 1.0})) == {1, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_logit_ends_its_row_alone(sampler: Sampler, bad: float) -> None:
    logits = np.tile(LOGITS, (3, 1))
    logits[1, 2] = bad
    for temperature in (0.0, 1e-30):
        first, second, third = sampler(logits, [RowChoice(temperature=temperature, top_k=1)] * 3)
        assert isinstance(second, NumericalError) and (first, third) == (1, 1)


def test_counter_randomness() -> None:
    values = [uniform(s, c, p) for s in range(20) for c in range(5) for p in range(50)]
    assert len(set(values)) == len(values) and all(0 <= v < 1 for v in values)
    assert abs(np.mean(values) - 0.5) < 0.01 and abs(np.std(values) - 12**-0.5) < 0.01
    assert uniform(7, 1, 3) == uniform(7, 1, 3)
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


def random_rows(count: int, vocab: int) -> tuple[np.ndarray, list[RowChoice]]:
    rng = np.random.default_rng(vocab)
    logits = (rng.standard_normal((count, vocab)) * rng.uniform(0.1, 8, (count, 1))).astype(np.float32)
    logits[::7] = np.round(logits[::7])  # many equal ones
    logits[3] = 0.25
    rows = [
        RowChoice(
            temperature=float(rng.choice([0.0, 0.3, 1.0, 2.0])),
            top_k=int(rng.choice([0, 1, 3, 50, vocab - 1, vocab + 5])),
            top_p=float(rng.choice([1.0, 0.95, 0.5, 0.01, 0.0])),
            min_p=float(rng.choice([0.0, 0.0, 0.05, 0.5])),
            seed=int(rng.integers(1 << 40)),
            position=position,
        )
        for position in range(count)
    ]
    return logits, rows


@pytest.mark.skipif(not native.is_built(), reason="the native core is not built")
@pytest.mark.parametrize("vocab", [5, 16, 1000, 49153])
def test_native_draws_what_numpy_draws(vocab: int) -> None:
    """Weights of float32 may move a draw that falls within their rounding of a border: at most one in two hundred."""
    logits, rows = random_rows(400 if vocab <= 1000 else 60, vocab)
    ours, theirs = native_sampler()(logits, rows), sample_rows(logits, rows)
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= len(rows) // 200


@pytest.mark.skipif(not native.is_built(), reason="the native core is not built")
def test_native_draws_depend_on_neither_threads_nor_isa() -> None:
    logits, rows = random_rows(100, 3001)
    wide = np.zeros((100, 3072), np.float32)
    wide[:, :3001] = logits
    first = native_sampler()(logits, rows)
    for threads, isa in ((1, "scalar"), (4, ""), *((2, isa) for isa in native.runnable_isas())):
        assert native_sampler(threads, isa)(wide[:, :3001], rows) == first
