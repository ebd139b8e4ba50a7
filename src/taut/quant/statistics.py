"""Statistics of one tensor over calibration text: streaming, in memory that does not grow with the text.

Knows rows (tokens, features), positions and windows (the sequences of the text); not what the tensor is. What it holds is exact and
independent of how rows came in batches: minima, maxima and counts by nature, sums of squares because each channel's are added in
float64 in the order of the rows. So the native `observe` step (csrc/observe.cc), which fills the same arrays, gives the same bits.

The histogram counts a value by the upper bits of its float32: sign, exponent and BIN_BITS bits of the fraction. Bins are at most 1/32 of
a value wide, and no range need be known in advance.

A sequence's first tokens (`sinks` of them) carry massive activations in decoders (Sun et al. 2024, arXiv 2402.17762), a thousand times the
rest's. Everything but the sample is kept for them apart; the readers' argument `sinks` says whether they count.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BIN_BITS = 5
SHIFT = 23 - BIN_BITS
NUM_BINS = 1 << (32 - SHIFT)
NUM_SAMPLES = 64
AVERAGING = 0.01  # llm-compressor's averaging constant
REST, SINKS = 0, 1  # the two classes of rows


def bins_of(x: F32) -> I64:
    """The bin of every value; -0 counts as 0."""
    canonical = np.ascontiguousarray(x, np.float32) + np.float32(0)
    found: I64 = (canonical.view(np.uint32) >> SHIFT).astype(np.int64)
    return found


def bin_bounds(bins: I64) -> tuple[F64, F64]:
    """(least, greatest) magnitudes' bounds of bins as signed values, low <= high: a value v of a bin has low <= v <= high."""
    magnitude = (bins & (NUM_BINS // 2 - 1)).astype(np.uint32)
    inner = (magnitude << SHIFT).view(np.float32).astype(np.float64)
    outer = ((magnitude + np.uint32(1)) << SHIFT).view(np.float32).astype(np.float64)
    negative = bins >= NUM_BINS // 2
    return np.where(negative, -outer, inner), np.where(negative, -inner, outer)


def sample_keys(first_row: int, count: int) -> NDArray[np.uint64]:
    """A number for each row of the text by its index alone (splitmix64; Steele et al. 2014): the rows of the NUM_SAMPLES least ones are
    the sample, whatever comes after."""
    with np.errstate(over="ignore"):
        z = (np.arange(first_row + 1, first_row + 1 + count, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        keys: NDArray[np.uint64] = z ^ (z >> np.uint64(31))
    return keys


class Sample:
    """Which rows of a text are the sample: slot by slot the key of the row that it holds. Rows of sinks are never chosen."""

    def __init__(self) -> None:
        self.keys = np.full(NUM_SAMPLES, np.iinfo(np.uint64).max, np.uint64)
        self.num_rows = 0  # seen

    def choose(self, is_sink: NDArray[np.bool_]) -> list[tuple[int, int]]:
        """(row of the batch, slot that it takes) of the next rows."""
        keys = sample_keys(self.num_rows, len(is_sink))
        self.num_rows += len(is_sink)
        picked: dict[int, int] = {}  # slot -> row
        for row in np.flatnonzero((keys < self.keys.max()) & ~is_sink):
            slot = int(self.keys.argmax())
            if keys[row] < self.keys[slot]:
                self.keys[slot], picked[slot] = keys[row], int(row)
        return [(row, slot) for slot, row in picked.items()]


def _ranges() -> F32:
    """(2 classes, low and high), empty: from infinity to minus infinity."""
    return np.array([[np.inf, -np.inf]] * 2, np.float32)


@dataclass(eq=False)
class Statistics:
    """Of a tensor with `channels` features. `squares` are sums of x², `ranges` the least and the greatest value, `averages` their
    exponential moving averages over windows and `firsts` their values in the first window; classes in the order REST, SINKS."""

    channels: int
    averaging: float = AVERAGING
    counts: I64 = field(default_factory=lambda: np.zeros(2, np.int64))  # (2,) rows
    windows: I64 = field(default_factory=lambda: np.zeros(2, np.int64))  # (2,) windows with such rows
    ranges: F32 = field(default_factory=_ranges)  # (2, low and high)
    averages: F64 = field(default_factory=lambda: np.zeros((2, 2)))  # (2, low and high)
    firsts: F64 = field(default_factory=lambda: np.zeros((2, 2)))  # (2, low and high)
    histogram: I64 = field(default_factory=lambda: np.zeros((2, NUM_BINS), np.int64))  # (2, bins)
    absmax: F32 = field(init=False)  # (2, channels)
    squares: F64 = field(init=False)  # (2, channels)
    samples: F32 = field(init=False)  # (NUM_SAMPLES, channels); only the first num_samples are filled
    num_samples: int = 0

    def __post_init__(self) -> None:
        self.absmax = np.zeros((2, self.channels), np.float32)
        self.squares = np.zeros((2, self.channels), np.float64)
        self.samples = np.zeros((NUM_SAMPLES, self.channels), np.float32)

    def add(self, x: F32, positions: NDArray[Any], starts: NDArray[Any], picks: list[tuple[int, int]], sinks: int) -> None:
        """Take in `x` (tokens, channels): whole windows, of which w has the rows starts[w]:starts[w + 1]. The specification of the native
        step, which does all but `fold`."""
        is_sink = np.asarray(positions) < sinks
        for kind in (REST, SINKS):
            rows = x[is_sink == bool(kind)]
            self.histogram[kind] += np.bincount(bins_of(rows).reshape(-1), minlength=NUM_BINS)
            self.absmax[kind] = np.maximum(self.absmax[kind], np.abs(rows).max(axis=0, initial=0))
            for row in rows.astype(np.float64):  # one by one: numpy's own sums are pairwise
                self.squares[kind] += row * row
        for row, slot in picks:
            self.samples[slot] = x[row]
        self.fold(window_ranges(x, is_sink, starts), is_sink, starts, picks)

    def fold(self, ranges: F32, is_sink: NDArray[np.bool_], starts: NDArray[Any], picks: list[tuple[int, int]]) -> None:
        """Take in the (windows, 2, 2) ranges of a batch's windows, and count its rows."""
        for begin, end, window in zip(starts[:-1], starts[1:], ranges.astype(np.float64), strict=True):
            num_sinks = int(is_sink[begin:end].sum())
            for kind, count in ((REST, end - begin - num_sinks), (SINKS, num_sinks)):
                if count:
                    self._fold_window(kind, window[kind])
                    self.counts[kind] += count
        self.num_samples += sum(slot >= self.num_samples for _, slot in picks)

    def _fold_window(self, kind: int, bounds: F64) -> None:
        self.ranges[kind] = min(self.ranges[kind, 0], bounds[0]), max(self.ranges[kind, 1], bounds[1])
        if not self.windows[kind]:
            self.averages[kind] = self.firsts[kind] = bounds
        else:
            self.averages[kind] = (1 - self.averaging) * self.averages[kind] + self.averaging * bounds
        self.windows[kind] += 1

    @property
    def is_finite(self) -> bool:
        """Whether every value was a number. The sums of squares carry NaN and infinity on."""
        return bool(np.isfinite(self.squares).all())

    def num_rows(self, *, sinks: bool = True) -> int:
        return int(self.counts.sum() if sinks else self.counts[REST])

    def _classes(self, sinks: bool) -> list[int]:
        """Those to read. A text of sinks alone has nothing else to say."""
        return [kind for kind in ((REST, SINKS) if sinks or not self.counts[REST] else (REST,)) if self.counts[kind]]

    def range(self, *, sinks: bool = True) -> tuple[float, float]:
        """The least and the greatest value."""
        chosen = self.ranges[self._classes(sinks)]
        return float(chosen[:, 0].min()), float(chosen[:, 1].max())

    def average_range(self, *, sinks: bool = True) -> tuple[float, float]:
        """The exponential moving average, over windows, of their least and greatest values."""
        chosen = self.averages[self._classes(sinks)]
        return float(chosen[:, 0].min()), float(chosen[:, 1].max())

    def channel_absmax(self, *, sinks: bool = True) -> F32:
        """(channels,) greatest magnitudes."""
        found: F32 = self.absmax[self._classes(sinks)].max(axis=0)
        return found

    def mean_squares(self, *, sinks: bool = True) -> F64:
        """(channels,) means of x² over rows: the importance of the channel's weights (the diagonal of GPTQ's Hessian, halved)."""
        kinds = self._classes(sinks)
        mean: F64 = self.squares[kinds].sum(axis=0) / self.counts[kinds].sum()
        return mean

    def sample(self) -> F32:
        """(rows, channels): up to NUM_SAMPLES rows spread over the text, no sinks among them."""
        return self.samples[: self.num_samples]

    def distribution(self, *, sinks: bool = True) -> tuple[F64, F64, I64]:
        """(low, high, count) of the bins that hold values, ascending; the outermost end at the range."""
        counts = self.histogram[self._classes(sinks)].sum(axis=0)
        bins = np.flatnonzero(counts)
        low, high = bin_bounds(bins)
        order = np.lexsort((high, low))
        least, greatest = self.range(sinks=sinks)
        return np.clip(low[order], least, greatest), np.clip(high[order], least, greatest), counts[bins[order]]

    def merge(self, later: Statistics) -> Statistics:
        """Both together, `later` being of text that follows. As one pass over all of it, but for the rounding of sums and averages, and
        the sample: as many rows of each as its share of all."""
        assert self.channels == later.channels and self.averaging == later.averaging
        merged = Statistics(self.channels, self.averaging)
        merged.counts, merged.windows = self.counts + later.counts, self.windows + later.windows
        merged.ranges[:, 0] = np.minimum(self.ranges[:, 0], later.ranges[:, 0])
        merged.ranges[:, 1] = np.maximum(self.ranges[:, 1], later.ranges[:, 1])
        for kind in (REST, SINKS):
            parts = (self, later) if self.windows[kind] else (later, later)
            merged.firsts[kind], merged.averages[kind] = parts[0].firsts[kind], parts[1].averages[kind]
            if self.windows[kind] and later.windows[kind]:  # later's average began with its first window whole
                decay = (1 - self.averaging) ** int(later.windows[kind])
                merged.averages[kind] += decay * (self.averages[kind] - later.firsts[kind])
            elif self.windows[kind]:
                merged.averages[kind] = self.averages[kind]
        merged.histogram = self.histogram + later.histogram
        merged.absmax = np.maximum(self.absmax, later.absmax)
        merged.squares = self.squares + later.squares
        rows = _shared_sample(self, later)
        merged.samples[: len(rows)], merged.num_samples = rows, len(rows)
        return merged

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """For a file; the histogram by its bins that hold values."""
        kinds, bins = np.nonzero(self.histogram)
        return {
            "numbers": np.array([self.channels, self.num_samples], np.int64),
            "averaging": np.array(self.averaging),
            "bins": np.stack([kinds, bins, self.histogram[kinds, bins]]).astype(np.int64),
            "samples": self.samples[: self.num_samples],
            **{name: getattr(self, name) for name in _WHOLE},
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Statistics:
        """The inverse of to_arrays. KeyError or ValueError for arrays that it did not make."""
        channels, num_samples = (int(n) for n in arrays["numbers"])
        made = cls(channels, float(arrays["averaging"]))
        for name in _WHOLE:
            own = getattr(made, name)
            if own.shape != arrays[name].shape or own.dtype != arrays[name].dtype:
                raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, not {own.dtype} {own.shape}")
            own[...] = arrays[name]
        kinds, bins, counts = arrays["bins"]
        if len(bins) and (bins.min() < 0 or bins.max() >= NUM_BINS or kinds.min() < 0 or kinds.max() > SINKS):
            raise ValueError("a bin is outside the histogram")
        made.histogram[kinds, bins] = counts
        made.samples[:num_samples] = arrays["samples"]
        made.num_samples = num_samples
        return made


_WHOLE = ("counts", "windows", "ranges", "averages", "firsts", "absmax", "squares")  # arrays that a file has as they are


def _shared_sample(a: Statistics, b: Statistics) -> F32:
    """Up to NUM_SAMPLES rows of both, in proportion to how many rows each has seen."""
    total = int(a.counts[REST] + b.counts[REST])
    share = round(NUM_SAMPLES * int(a.counts[REST]) / total) if total else 0
    of_b = min(NUM_SAMPLES - min(share, a.num_samples), b.num_samples)
    rows: F32 = np.concatenate([a.samples[: min(NUM_SAMPLES - of_b, a.num_samples)], b.samples[:of_b]])
    return rows


def window_ranges(x: F32, is_sink: NDArray[np.bool_], starts: NDArray[Any]) -> F32:
    """(windows, 2 classes, low and high) of `x` (tokens, channels); infinity and minus infinity where a class has no row."""
    found = np.empty((len(starts) - 1, 2, 2), np.float32)
    for window, (begin, end) in enumerate(itertools.pairwise(starts)):
        for kind in (REST, SINKS):
            rows = x[begin:end][is_sink[begin:end] == bool(kind)] + np.float32(0)
            found[window, kind] = rows.min(initial=np.inf), rows.max(initial=-np.inf)
    return found
