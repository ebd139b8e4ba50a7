"""What every benchmark shares: the model as it is seen here, the process's memory, limits measured around each repetition."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from taut.bench.work import Work, floor_s
from taut.engine.engine import Engine
from taut.plan.plan import Plan
from taut.plan.weights import WeightStore

Limits = Mapping[str, Any]
Measure = Callable[[], Limits]
T = TypeVar("T")
RATES = ("int8_tops", "bf16_tflops", "fp32_tflops", "read_gb_s")


class Pool(Protocol):
    """Owner of KV blocks."""

    def take(self, count: int) -> list[int]: ...

    def release(self, blocks: list[int]) -> None: ...


@dataclass(frozen=True)
class Subject:
    """A loaded model, as benchmarks need it. `pool` is None for encoders; `step_tokens` is the longest prefill chunk."""

    name: str
    engine: Engine
    plan: Plan
    weights: WeightStore
    pool: Pool | None
    vocab_size: int
    context_len: int
    step_tokens: int

    @property
    def kv_bytes_per_token(self) -> float:
        return self.engine.kv.layout.bytes_per_token if self.engine.kv is not None else 0.0


def subject(model: Any) -> Subject:
    """An api.Model as a Subject. Untyped, because the Python interface stands to the right of the benchmarks."""
    loaded = model.loaded
    pool = loaded.scheduler.pool if model.kind == "decoder" else None
    vocab_size, step_tokens = loaded.built.vocab_size, loaded.config.step_tokens
    return Subject(model.name, model.engine, model.plan, loaded.store, pool, vocab_size, model.context_len, step_tokens)


def around(measure: Measure, repetitions: int, once: Callable[[], T]) -> Iterator[tuple[T, Limits]]:
    """Run `once` several times; with each result come the limits of that moment: the mean of just before and just after."""
    before = measure()
    for _ in range(repetitions):
        result = once()
        after = measure()
        yield result, mean(before, after)
        before = after


def mean(a: Limits, b: Limits) -> Limits:
    """The rates averaged, everything else from `b`."""
    rates = {name: None if a[name] is None or b[name] is None else (float(a[name]) + float(b[name])) / 2 for name in RATES}
    return {**b, **rates}


def middle(limits: list[Limits]) -> Limits:
    """The rates' medians, everything else from the last."""
    rates = {name: statistics.median(float(one[name]) for one in limits) for name in RATES if limits[-1][name] is not None}
    return {**limits[-1], **rates}


def share(work: Work, limits: Limits, seconds: float) -> float:
    """of_limit: the least time that the work takes at these limits, over the time that it took."""
    return floor_s(work, limits) / seconds


def rss_bytes() -> tuple[int, int]:
    """(resident memory now, its peak) of this process."""
    found = {}
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]
