"""Statistics against brute force on the whole array, whatever the batches were."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from taut.quant.statistics import NUM_BINS, NUM_SAMPLES, REST, SINKS, Sample, Statistics, bin_bounds, bins_of, sample_keys

LENGTHS = (70, 3, 1, 40, 130, 2)
SINK_LEN = 4


def values(lengths: Sequence[int] = LENGTHS, channels: int = 7, seed: int = 0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    x = rng.laplace(size=(sum(lengths), channels)) * 10.0 ** rng.integers(-3, 3, channels)
    x[rng.random(x.shape) < 0.1] = 0
    return x.astype(np.float32)


def positions(lengths: Sequence[int]) -> NDArray[np.int32]:
    return np.concatenate([np.arange(length) for length in lengths]).astype(np.int32)


def gather(x: NDArray[np.float32], lengths: Sequence[int] = LENGTHS, per_batch: int = 100, sinks: int = SINK_LEN) -> Statistics:
    """In batches of `per_batch` windows."""
    found, sample, begin = Statistics(x.shape[1]), Sample(), 0
    for first in range(0, len(lengths), per_batch):
        own = lengths[first : first + per_batch]
        where = positions(own)
        rows = x[begin : begin + len(where)]
        found.add(rows, where, np.cumsum([0, *own]), sample.choose(where < sinks), sinks)
        begin += len(where)
    return found


def equal(a: Statistics, b: Statistics) -> bool:
    first, second = a.to_arrays(), b.to_arrays()
    return all(np.array_equal(first[name], second[name]) for name in first)


def test_what_it_says_is_true_of_all_rows() -> None:
    x = values()
    found, is_sink = gather(x), positions(LENGTHS) < SINK_LEN
    for sinks, rows in ((True, x), (False, x[~is_sink])):
        assert found.num_rows(sinks=sinks) == len(rows)
        assert found.range(sinks=sinks) == (rows.min(), rows.max())
        assert np.array_equal(found.channel_absmax(sinks=sinks), np.abs(rows).max(axis=0))
        assert np.allclose(found.mean_squares(sinks=sinks), (rows.astype(np.float64) ** 2).mean(axis=0), rtol=1e-12)
        low, high, counts = found.distribution(sinks=sinks)
        assert counts.sum() == rows.size
        assert (low <= high).all()
        assert (np.diff(low) >= 0).all()
        ordered = np.sort(rows.reshape(-1).astype(np.float64))
        owner = np.repeat(np.arange(len(counts)), counts)
        assert (low[owner] <= ordered).all()
        assert (ordered <= high[owner]).all()


def test_averages_are_moving_averages_over_windows() -> None:
    x, begin = values(), 0
    expected: list[float] = []
    for length in LENGTHS:
        rows = x[begin + SINK_LEN : begin + length]
        if rows.size:
            bounds = np.array([rows.min(), rows.max()], np.float64)
            expected = list(bounds if not len(expected) else 0.99 * np.array(expected) + 0.01 * bounds)
        begin += length
    assert gather(x).average_range(sinks=False) == pytest.approx(tuple(expected), rel=1e-12)


@pytest.mark.parametrize("per_batch", [1, 2, 5])
def test_batches_change_no_bit(per_batch: int) -> None:
    assert equal(gather(values()), gather(values(), per_batch=per_batch))


def test_the_sample_is_of_rows_all_over_the_text_and_of_no_sinks() -> None:
    lengths = (100,) * 20
    x = np.arange(sum(lengths), dtype=np.float32)[:, None]
    rows = gather(x, lengths).sample()[:, 0].astype(int)
    assert len(set(rows)) == NUM_SAMPLES
    assert (rows % 100 >= SINK_LEN).all()
    assert np.histogram(rows, bins=4, range=(0, len(x)))[0].min() >= 6
    keys = sample_keys(0, len(x))
    keys[positions(lengths) < SINK_LEN] = np.iinfo(np.uint64).max
    assert set(rows) == set(np.argsort(keys)[:NUM_SAMPLES])


def test_a_short_text_is_its_own_sample() -> None:
    x = values((9, 3))
    assert np.array_equal(gather(x, (9, 3)).sample(), x[SINK_LEN:9])


def test_merging_is_one_pass_over_both() -> None:
    x = values()
    cut = sum(LENGTHS[:3])
    merged = gather(x[:cut], LENGTHS[:3]).merge(gather(x[cut:], LENGTHS[3:]))
    whole = gather(x)
    for name in ("counts", "windows", "ranges", "histogram", "absmax"):
        assert np.array_equal(getattr(merged, name), getattr(whole, name)), name
    for name in ("squares", "averages", "firsts"):
        assert np.allclose(getattr(merged, name), getattr(whole, name), rtol=1e-12), name
    rows = {row.tobytes() for row in x}
    assert merged.num_samples == NUM_SAMPLES
    assert all(row.tobytes() in rows for row in merged.sample())


def test_merging_with_nothing_changes_nothing() -> None:
    whole = gather(values())
    assert equal(whole.merge(Statistics(7)), whole)
    assert equal(Statistics(7).merge(whole), whole)


def test_arrays_bring_it_back() -> None:
    whole = gather(values())
    back = Statistics.from_arrays(whole.to_arrays())
    assert equal(back, whole)
    assert np.array_equal(back.histogram, whole.histogram)
    damaged = {**whole.to_arrays(), "absmax": np.zeros((2, 3), np.float32)}
    with pytest.raises(ValueError, match="absmax"):
        Statistics.from_arrays(damaged)


def test_sinks_alone_count_where_there_is_nothing_else() -> None:
    x = values((3, 2))
    found = gather(x, (3, 2))
    assert found.range(sinks=False) == (x.min(), x.max())
    assert not found.num_samples


def test_without_sinks_every_row_is_of_the_rest() -> None:
    found = gather(values(), sinks=0)
    assert found.counts.tolist() == [sum(LENGTHS), 0]
    assert not found.histogram[SINKS].any()
    assert found.histogram[REST].any()


def test_a_value_that_is_no_number_is_seen() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        x = values()
        x[200, 3] = bad
        assert not gather(x).is_finite
    assert gather(values()).is_finite


def test_bins_hold_their_values_and_minus_zero_is_zero() -> None:
    x = np.concatenate([values().reshape(-1), np.array([0, -0.0, 3e38, -3e38, 1e-45], np.float32)])
    bins = bins_of(x)
    low, high = bin_bounds(bins)
    assert ((low <= x) & (x <= high)).all()
    assert bins_of(np.array([-0.0], np.float32))[0] == 0
    inner = np.abs(x) > 1e-37  # normal numbers
    assert (high[inner] - low[inner] <= np.abs(x[inner]) / 32 * (1 + 1e-6)).all()
    assert bins.max() < NUM_BINS
