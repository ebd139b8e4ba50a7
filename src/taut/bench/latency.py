"""Prefill and decode times of a decoder, straight through the engine: no scheduler, no server, random token ids."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.bench.probe import Limits, Measure, Subject, around, middle, rss_bytes, share
from taut.bench.work import Work, count
from taut.engine.batch import Batch, Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.engine.sampler import RowChoice
from taut.errors import UsageError

Ints = NDArray[np.int64]
_WARM_STEPS = 8


@dataclass(frozen=True)
class Load:
    """`batch` sequences of `prompt` tokens, then `gen` steps of one token each; the whole `reps` times after one warm-up."""

    prompt: int = 512
    gen: int = 32
    batch: int = 1
    reps: int = 3

    def __post_init__(self) -> None:
        if min(self.prompt, self.gen, self.batch, self.reps) < 1:
            raise UsageError(f"prompt, gen, batch and reps must be at least 1, not {self}")


@dataclass(frozen=True)
class _Timing:
    prefill_s: float
    steps_s: list[float]
    prefill_work: Work
    decode_work: Work

    @property
    def decode_s(self) -> float:
        return statistics.median_high(self.steps_s)


def run(subject: Subject, load: Load, measure: Measure) -> dict[str, Any]:
    """Time `load`. `measure` gives the machine's limits (bench/limits.py); it is called before and after every repetition.

    Medians over the repetitions; `decode_ms` is one step of the whole batch. Raises UsageError when the load does not fit.
    """
    total_len = load.prompt + load.gen
    if subject.pool is None:
        raise UsageError(f"{subject.name} is an encoder; use `taut bench encoder`")
    if total_len > subject.context_len:
        raise UsageError(
            f"prompt {load.prompt} + gen {load.gen} are more than the context of {subject.context_len} tokens; give less of either"
        )
    needed, kv = load.batch * blocks_for(total_len), subject.engine.kv
    if kv is not None and needed > kv.num_blocks:
        raise UsageError(f"the load needs {needed} KV blocks, the memory budget gives {kv.num_blocks}; lower batch or prompt")
    tables = [subject.pool.take(blocks_for(total_len)) for _ in range(load.batch)]
    try:
        rng = np.random.default_rng(0)
        _repetition(subject, replace(load, gen=min(load.gen, _WARM_STEPS)), tables, rng)  # pages are committed, caches filled
        _, peak = rss_bytes()  # of loading, prefill and some steps; measuring the limits takes memory of its own
        pairs = list(around(measure, load.reps, lambda: _repetition(subject, load, tables, rng)))
    finally:
        for table in tables:
            subject.pool.release(table)
    rss, _ = rss_bytes()
    repetitions = [_recorded(timing, limits) for timing, limits in pairs]
    return {
        "model": subject.name,
        "precision": subject.plan.precision,
        "prompt": load.prompt,
        "gen": load.gen,
        "batch": load.batch,
        "prefill_tokens_per_s": load.batch * load.prompt / statistics.median(t.prefill_s for t, _ in pairs),
        "decode_ms": 1e3 * statistics.median(t.decode_s for t, _ in pairs),
        "of_limit": {name: statistics.median(one["of_limit"][name] for one in repetitions) for name in ("prefill", "decode")},
        "decode_bytes": pairs[-1][0].decode_work.weight_bytes + pairs[-1][0].decode_work.kv_bytes,
        "rss_bytes": rss,
        "peak_rss_bytes": peak,
        "limits": dict(middle([limits for _, limits in pairs])),
        "repetitions": repetitions,
    }


def _recorded(timing: _Timing, limits: Limits) -> dict[str, Any]:
    """One repetition for the record: its times and its shares of the limits of that moment."""
    return {
        "prefill_s": timing.prefill_s,
        "decode_s": timing.decode_s,
        "steps_s": timing.steps_s,
        "of_limit": {
            "prefill": share(timing.prefill_work, limits, timing.prefill_s),
            "decode": share(timing.decode_work, limits, timing.decode_s),
        },
        "read_gb_s": limits["read_gb_s"],
    }


def _repetition(subject: Subject, load: Load, tables: Sequence[list[int]], rng: np.random.Generator) -> _Timing:
    # Random ids: which ones does not change the time, but a constant would read one embedding row only.
    prompts = rng.integers(0, subject.vocab_size, (load.batch, load.prompt))  # (batch, prompt)
    prefill_s, prefill_work = 0.0, Work(0, 0, 0, 0, 0)
    for ids, table in zip(prompts, tables, strict=True):
        for begin in range(0, load.prompt, subject.step_tokens):
            chunk = ids[begin : begin + subject.step_tokens]
            part = Part(chunk.tolist(), begin, table, wants_row=begin + len(chunk) == load.prompt)
            seconds, work = _step(subject, concatenate([part]))
            prefill_s, prefill_work = prefill_s + seconds, prefill_work + work
    steps = []
    for position in range(load.prompt, load.prompt + load.gen):
        ids = rng.integers(0, subject.vocab_size, load.batch)  # (batch,)
        batch = concatenate([Part([int(token)], position, table) for token, table in zip(ids, tables, strict=True)])
        steps.append(_step(subject, batch))
    by_time = sorted(steps, key=lambda step: step[0])
    return _Timing(prefill_s, [seconds for seconds, _ in steps], prefill_work, by_time[len(by_time) // 2][1])


def _step(subject: Subject, batch: Batch) -> tuple[float, Work]:
    """(seconds, work) of one engine step, choosing the next tokens included."""
    choices = [RowChoice()] * batch.num_rows
    start = time.perf_counter()
    subject.engine.run(batch, choices)
    seconds = time.perf_counter() - start
    return seconds, count(subject.plan, subject.weights, batch, subject.kv_bytes_per_token)
