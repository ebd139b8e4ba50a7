"""A rung's samples to numbers, and the first rung against the last. Pure: mappings in, mappings out."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from taut.bench.ladder.climb import Climbed, Course
from taut.bench.probe import Limits, middle

Figures = dict[str, Any]
# name in the summary: (figure, whether more is better)
ENCODER = {"throughput": ("requests_per_s", True), "p99": ("p99_ms", False), "memory": ("memory_bytes", False)}
DECODER = {
    "throughput": ("requests_per_s", True),
    "prefill": ("prefill_tokens_per_s", True),
    "decode": ("decode_ms", False),
    "p99": ("decode_p99_ms", False),
    "memory": ("memory_bytes", False),
}


def result(course: Course, climbed: Sequence[Climbed]) -> dict[str, Any]:
    """The whole ladder, ready for JSON."""
    rungs = [figures(course, one) for one in climbed]
    limits: list[Limits] = [answer["limits"] for one in climbed for answer in one.answers if "limits" in answer]
    return {
        "model": course.seen.name,
        "kind": course.seen.kind,
        "load": dict(course.load),
        "rounds": course.rounds,
        "rungs": rungs,
        "summary": summary(course.seen.kind, rungs),
        "limits": dict(middle(limits)) if limits else None,
    }


def figures(course: Course, climbed: Climbed) -> Figures:
    """Numbers of one rung over all its runs; only its name and `missing` when it could not be run."""
    rung = climbed.rung
    head: Figures = {"key": rung.key, "title": rung.title, "precision": rung.precision, "is_aside": rung.is_aside}
    if climbed.missing is not None:
        return {**head, "missing": climbed.missing}
    repetitions = [one for answer in climbed.answers for one in answer["repetitions"]]
    speed = _encoder if course.seen.kind == "encoder" else _decoder
    first = climbed.answers[0]
    more: Figures = {name: first[name] for name in ("system", "estimated_from_passes") if name in first}
    return {
        **head,
        **speed(course.load, repetitions),
        "memory_bytes": int(statistics.median(answer["rss_bytes"] - answer["rss_before_bytes"] for answer in climbed.answers)),
        "rss_bytes": int(statistics.median(answer["rss_bytes"] for answer in climbed.answers)),
        "load_s": statistics.median(answer["load_s"] for answer in climbed.answers),
        "quality": first["quality"],
        **more,
        "repetitions": repetitions,
    }


def _encoder(load: Mapping[str, int], repetitions: Sequence[Mapping[str, Any]]) -> Figures:
    times = [seconds for one in repetitions for seconds in one["batches_s"]]
    shares = [one["of_limit"] for one in repetitions if "of_limit" in one]
    return {
        "requests_per_s": load["batch"] / statistics.median(times),
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "samples": len(times),
        "of_limit": statistics.median(shares) if shares else None,
    }


def _decoder(load: Mapping[str, int], repetitions: Sequence[Mapping[str, Any]]) -> Figures:
    """A request is a prompt and its generated tokens; P50 and P99 are of one step, the time between two tokens of a request."""
    prefill_s = statistics.median(one["prefill_s"] for one in repetitions)
    total_s = statistics.median(one["prefill_s"] + sum(one["steps_s"]) for one in repetitions)
    steps = [seconds for one in repetitions for seconds in one["steps_s"]]
    shares = [one["of_limit"] for one in repetitions if "of_limit" in one]
    median = {name: statistics.median(one[name] for one in shares) for name in ("prefill", "decode")} if shares else None
    return {
        "requests_per_s": load["batch"] / total_s,
        "request_s": total_s,
        "prefill_ms": 1e3 * prefill_s,
        "prefill_tokens_per_s": load["batch"] * load["prompt"] / prefill_s,
        "decode_ms": 1e3 * float(np.percentile(steps, 50)),
        "decode_p99_ms": 1e3 * float(np.percentile(steps, 99)),
        "samples": len(steps),
        "of_limit": median,
    }


def summary(kind: str, rungs: Sequence[Figures]) -> dict[str, Any] | None:
    """How many times better the last rung is than the first, asides and missing ones left out. None for less than two rungs."""
    measured = [rung for rung in rungs if not rung["is_aside"] and "missing" not in rung]
    if len(measured) < 2:
        return None
    first, last = measured[0], measured[-1]
    ratios = {}
    for name, (figure, is_more_better) in (ENCODER if kind == "encoder" else DECODER).items():
        ratios[name] = last[figure] / first[figure] if is_more_better else first[figure] / last[figure]
    return {"first": first["key"], "last": last["key"], **ratios}
