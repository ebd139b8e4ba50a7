"""Throughput and latency of an encoder on sequences of one length, straight through the engine: tokenization not included."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from taut.bench.probe import Measure, Subject, around, middle, rss_bytes, share
from taut.bench.work import count
from taut.engine.batch import Batch, Part, concatenate
from taut.errors import UsageError
from taut.units import counted

_BURST_S = 1.0  # a repetition runs batches for about this long between two measurements of the limits


@dataclass(frozen=True)
class Load:
    """Batches of `batch` sequences of `length` tokens, for `reps` repetitions of about a second, `least` batches at least."""

    length: int = 512
    batch: int = 1
    reps: int = 5
    least: int = 5

    def __post_init__(self) -> None:
        if min(self.length, self.batch, self.reps, self.least) < 1:
            raise UsageError(f"length, batch, reps and least must be at least 1, not {self}")


def run(subject: Subject, load: Load, measure: Measure) -> dict[str, Any]:
    """Time `load`. `measure` gives the machine's limits (bench/limits.py). p50 and p99 are over single batches."""
    if subject.pool is not None:
        raise UsageError(f"{subject.name} is a decoder; use `taut bench latency`")
    if load.length > subject.context_len:
        raise UsageError(
            f"length is {load.length}, but {subject.name} takes at most {counted(subject.context_len, 'token')}; give at most that"
        )
    rng = np.random.default_rng(0)
    ids = rng.integers(0, subject.vocab_size, (load.batch, load.length))  # (batch, length)
    batch = concatenate([Part(row.tolist()) for row in ids])
    for _ in range(2):
        subject.engine.embed(batch)
    _, peak = rss_bytes()  # of loading and running; measuring the limits takes memory of its own
    pairs = list(around(measure, load.reps, lambda: _burst(subject, batch, load.least)))
    work = count(subject.plan, subject.weights, batch, 0.0)
    times = [seconds for burst, _ in pairs for seconds in burst]
    shares = [share(work, limits, statistics.median(burst)) for burst, limits in pairs]
    rss, _ = rss_bytes()
    return {
        "model": subject.name,
        "precision": subject.plan.precision,
        "length": load.length,
        "batch": load.batch,
        "requests_per_s": load.batch / statistics.median(times),
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "batches": len(times),
        "of_limit": statistics.median(shares),
        "rss_bytes": rss,
        "peak_rss_bytes": peak,
        "limits": dict(middle([limits for _, limits in pairs])),
        "repetitions": [{"batches_s": burst, "of_limit": part} for (burst, _), part in zip(pairs, shares, strict=True)],
    }


def _burst(subject: Subject, batch: Batch, least: int) -> list[float]:
    """Seconds of each batch of one repetition."""
    times: list[float] = []
    while len(times) < least or sum(times) < _BURST_S:
        start = time.perf_counter()
        subject.engine.embed(batch)
        times.append(time.perf_counter() - start)
    return times
