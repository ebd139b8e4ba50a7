"""Every figure of a language model's quality against a plain calculation, position by position."""

from __future__ import annotations

import math

import numpy as np
import pytest

from taut.quality import positions
from taut.quality.figures import BUCKETS, Figures, figures, standard_error

VOCAB = 11
LENGTHS = (150, 70, 2)  # more than one part of rows; the last bucket cut; the shortest window


def made(seed: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(reference logits, candidate logits, ids) of each window; the ids are often what the models find likely."""
    rng = np.random.default_rng(seed)
    found = []
    for length in LENGTHS:
        reference = 2 * rng.standard_normal((length, VOCAB)).astype(np.float32)
        candidate = reference + rng.standard_normal((length, VOCAB)).astype(np.float32)
        ids = rng.integers(0, VOCAB, length).astype(np.int32)
        likely = rng.random(length - 1) < 0.5
        ids[1:][likely] = reference.argmax(-1)[:-1][likely]
        found.append((reference, candidate, ids))
    return found


def compared(windows: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> positions.Positions:
    return positions.join([positions.compare(r, c, ids, number) for number, (r, c, ids) in enumerate(windows)])


def probabilities(row: np.ndarray) -> list[float]:
    weights = [math.exp(float(value)) for value in row]
    return [weight / sum(weights) for weight in weights]


def test_every_figure_by_hand() -> None:
    windows = made(0)
    kls, nlls, reference_nlls, agreements, lost, gained = [], [], [], [], 0, 0
    per_bucket: dict[int, list[tuple[float, bool, float | None]]] = {}
    for reference, candidate, ids in windows:
        for place in range(len(ids)):
            p, q = probabilities(reference[place]), probabilities(candidate[place])
            kls.append(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
            first, other = p.index(max(p)), q.index(max(q))
            agreements.append(first == other)
            gap = None
            if place + 1 < len(ids):
                token = int(ids[place + 1])
                nlls.append(-math.log(q[token]))
                reference_nlls.append(-math.log(p[token]))
                gap = nlls[-1] - reference_nlls[-1]
                lost += first == token != other
                gained += other == token != first
            bucket = max(bound for bound in BUCKETS if bound <= place)
            per_bucket.setdefault(bucket, []).append((kls[-1], agreements[-1], gap))
    found = figures(compared(windows))
    tokens = sum(LENGTHS)
    assert (found.tokens, found.windows, found.predicted) == (tokens, 3, tokens - 3)
    assert found.kl == pytest.approx(sum(kls) / tokens, rel=1e-5)
    ordered = sorted(kls)
    assert found.kl_median == pytest.approx(ordered[tokens // 2 - 1] / 2 + ordered[tokens // 2] / 2, rel=1e-4)
    assert ordered[-4] <= found.kl_p99 * (1 + 1e-5) and found.kl_p99 <= ordered[-2]
    assert found.top1 == sum(agreements) / tokens
    assert found.perplexity == pytest.approx(math.exp(sum(nlls) / len(nlls)), rel=1e-5)
    assert found.reference_perplexity == pytest.approx(math.exp(sum(reference_nlls) / len(nlls)), rel=1e-5)
    assert found.perplexity_change == pytest.approx(found.perplexity / found.reference_perplexity - 1)
    gaps_of = np.split(np.array(nlls) - np.array(reference_nlls), np.cumsum([length - 1 for length in LENGTHS])[:-1])
    mean = sum(map(sum, gaps_of)) / len(nlls)
    spread = math.sqrt(3 / 2 * sum(sum(gap - mean for gap in gaps) ** 2 for gaps in gaps_of)) / len(nlls)
    assert found.perplexity_change_error == pytest.approx(math.exp(mean) * spread, rel=1e-4)
    assert (found.flips_lost, found.flips_gained) == (lost, gained)
    assert 0 < gained < lost, "the case tells one from the other"
    assert [(b.first, b.last, b.tokens) for b in found.buckets] == [(0, 31, 66), (32, 127, 134), (128, 149, 22)]
    for bucket in found.buckets:
        values = per_bucket[bucket.first]
        assert bucket.kl == pytest.approx(sum(kl for kl, _, _ in values) / len(values), rel=1e-5)
        assert bucket.top1 == sum(agrees for _, agrees, _ in values) / len(values)
        gaps = [gap for _, _, gap in values if gap is not None]
        assert bucket.perplexity_change == pytest.approx(math.exp(sum(gaps) / len(gaps)) - 1, rel=1e-4)


def test_the_arguments_have_an_order() -> None:
    (window,) = made(1)[:1]
    reference, candidate, ids = window
    there, back = (figures(positions.compare(*pair, ids)) for pair in ((reference, candidate), (candidate, reference)))
    assert abs(there.kl - back.kl) > 0.01
    assert there.perplexity == back.reference_perplexity
    assert (there.flips_lost, there.flips_gained) == (back.flips_gained, back.flips_lost)


def test_the_position_before_a_token_predicts_it() -> None:
    """A model that is sure of the next token has perplexity 1; one position off, it has not."""
    ids = np.array([3, 1, 4, 1, 5], np.int32)
    sure = np.zeros((5, VOCAB), np.float32)
    sure[np.arange(4), ids[1:]] = 60
    found = figures(positions.compare(np.zeros_like(sure), sure, ids))
    assert found.perplexity == pytest.approx(1, abs=1e-6)
    assert found.reference_perplexity == pytest.approx(VOCAB)
    assert (found.flips_gained, found.flips_lost) == (4, 0), "all zeros name token 0, which never follows"
    late = np.roll(sure, 1, axis=0)
    assert figures(positions.compare(late, late, ids)).perplexity > 100


def test_long_windows_have_a_bucket_of_their_own() -> None:
    logits = np.zeros((600, 3), np.float32)
    found = figures(positions.compare(logits, logits, np.zeros(600, np.int32)))
    assert [(b.first, b.last) for b in found.buckets] == [(0, 31), (32, 127), (128, 255), (256, 511), (512, 599)]
    assert found.buckets[-1].tokens == 88
    assert figures(positions.compare(logits[:512], logits[:512], np.zeros(512, np.int32))).buckets == found.buckets[:4]


def test_one_window_has_no_error() -> None:
    (window,) = made(2)[:1]
    found = figures(positions.compare(*window))
    assert found.kl_error is None and found.perplexity_change_error is None
    assert isinstance(found, Figures) and found.to_json()["buckets"][0]["kl_error"] is None


def test_the_error_is_that_of_the_windows_means() -> None:
    means = np.array([1.0, 2.0, 4.0, 5.0])
    values, window = np.repeat(means, 50), np.repeat(np.arange(4), 50).astype(np.int32)
    assert standard_error(values, window) == pytest.approx(means.std(ddof=1) / 2)
    assert standard_error(np.repeat(means, 2), np.repeat(np.arange(4), 2).astype(np.int32)) == pytest.approx(
        means.std(ddof=1) / 2
    )


def test_the_error_covers_the_truth() -> None:
    """Over many draws of windows that differ from each other, the mean lies within two errors of the truth about 19 times in 20."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        lengths = rng.integers(5, 60, 24)
        window = np.repeat(np.arange(24), lengths).astype(np.int32)
        values = rng.standard_normal(24)[window] + rng.standard_normal(len(window))
        error = standard_error(values, window)
        assert error is not None
        hits += abs(float(values.mean())) < 2 * error
    assert 0.88 <= hits / 400 <= 0.98
