"""The benchmarks' own arithmetic, on tiny models with the reference executor and invented limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import taut
from taut.bench import encoder, latency, report
from taut.bench.probe import around, mean, subject
from taut.errors import UsageError


def limits(gb_s: float = 10.0) -> dict[str, Any]:
    rates = {"int8_tops": 1.0, "bf16_tflops": 0.5, "fp32_tflops": 0.25, "read_gb_s": gb_s}
    return {"cpu": "a test's", "threads": 1, "isa": "numpy", **rates}


@pytest.fixture(scope="module")
def decoder(tiny_models: dict[str, Path]) -> Any:
    return taut.load(str(tiny_models["llama"]), executor="reference", precision="fp32")


def test_latency_record(decoder: Any) -> None:
    pool = decoder.loaded.scheduler.pool
    before = pool.num_available
    result = latency.run(subject(decoder), latency.Load(prompt=40, gen=3, batch=2, reps=2), limits)
    json.dumps(result)
    assert {"prefill_tokens_per_s", "decode_ms", "of_limit", "rss_bytes", "peak_rss_bytes", "limits"} <= set(result)
    assert set(result["of_limit"]) == {"prefill", "decode"}
    assert result["peak_rss_bytes"] > 0
    assert result["rss_bytes"] > 0
    assert pool.num_available == before
    # The floor of a decode step at 10 GB/s, against the time it took.
    floor_s = result["decode_bytes"] / 10e9
    fastest = min(one["decode_s"] for one in result["repetitions"])
    assert 0 < result["of_limit"]["decode"] <= floor_s / fastest * 1.001


def test_peak_memory_is_the_models_not_the_measurement_s(decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []
    monkeypatch.setattr(latency, "rss_bytes", lambda: (10, 20 + len(measured)))
    result = latency.run(subject(decoder), latency.Load(prompt=8, gen=1, reps=2), lambda: measured.append(1) or limits())
    assert (result["rss_bytes"], result["peak_rss_bytes"]) == (10, 20)
    assert len(measured) == 3


def test_latency_refuses_what_does_not_fit(decoder: Any, tiny_models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="context of 256"):
        latency.run(subject(decoder), latency.Load(prompt=250, gen=32), limits)
    with pytest.raises(UsageError, match="at least 1"):
        latency.Load(batch=0)
    with pytest.raises(UsageError, match="KV blocks"):
        latency.run(subject(decoder), latency.Load(prompt=200, gen=32, batch=1000), limits)
    encoder_model = taut.load(str(tiny_models["bert"]), executor="reference", precision="fp32")
    with pytest.raises(UsageError, match="bench encoder"):
        latency.run(subject(encoder_model), latency.Load(), limits)
    with pytest.raises(UsageError, match="bench latency"):
        encoder.run(subject(decoder), encoder.Load(), limits)


def test_encoder_record(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_BURST_S", 0.0)
    model = taut.load(str(tiny_models["roberta"]), executor="reference", precision="fp32")
    result = encoder.run(subject(model), encoder.Load(length=24, batch=2, reps=2), limits)
    json.dumps(result)
    assert {"requests_per_s", "p50_ms", "p99_ms", "of_limit", "rss_bytes"} <= set(result)
    assert result["p99_ms"] >= result["p50_ms"] > 0
    assert result["batches"] == 10
    assert result["requests_per_s"] == pytest.approx(2e3 / result["p50_ms"], rel=1e-6)
    with pytest.raises(UsageError, match="takes at most 64 tokens"):
        encoder.run(subject(model), encoder.Load(length=65), limits)


def test_limits_surround_every_repetition() -> None:
    rates: Iterator[float] = iter([10.0, 20.0, 40.0])
    pairs = list(around(lambda: limits(next(rates)), 2, lambda: "ran"))
    assert [pair[1]["read_gb_s"] for pair in pairs] == [15.0, 30.0]
    without = {**limits(), "bf16_tflops": None}
    assert mean(without, without)["bf16_tflops"] is None


def test_records(tmp_path: Path) -> None:
    path = report.save(tmp_path / "records", "one", "taut bench latency x", {"decode_ms": 1.5})
    saved = json.loads(path.read_text())
    assert saved["result"] == {"decode_ms": 1.5}
    assert saved["machine"]["cpu"]
    assert saved["machine"]["cores"] >= 1
    assert saved["time"].endswith("+00:00")


def test_text() -> None:
    shown = report.text({"decode_ms": 12.345, "of_limit": {"decode": 0.5}, "rss_bytes": 2_500_000_000, "repetitions": [1]})
    assert [line.split() for line in shown.splitlines()] == [
        ["decode_ms", "12.35"],
        ["of_limit.decode", "50.0%"],
        ["rss_bytes", "2.500", "GB"],
    ]
