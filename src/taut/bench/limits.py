"""The machine's ceilings, measured here and now: what every `of_limit` divides by.

Knows no model. Rates are the best of many short runs, because a shared machine only ever makes a run slower; bandwidth moves within
a minute, so a benchmark measures it again around each repetition (bench/probe.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from taut.bench.report import cpu_name
from taut.engine.runtime import runtime
from taut.kernels import native


@dataclass(frozen=True)
class Limits(Mapping[str, Any]):
    """Ceilings of `threads` threads. Two operations per multiply-add; `bf16_tflops` is None without a bf16 dot product.

    As a mapping it is its JSON record.
    """

    cpu: str
    threads: int
    isa: str
    int8_tops: float
    bf16_tflops: float | None
    fp32_tflops: float
    read_gb_s: float

    def to_json(self) -> dict[str, Any]:
        """The record that `taut limits --json` prints."""
        return {
            "cpu": self.cpu,
            "threads": self.threads,
            "isa": self.isa,
            "int8_tops": _round(self.int8_tops),
            "bf16_tflops": None if self.bf16_tflops is None else _round(self.bf16_tflops),
            "fp32_tflops": _round(self.fp32_tflops),
            "read_gb_s": _round(self.read_gb_s),
        }

    def __getitem__(self, name: str) -> Any:
        return self.to_json()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_json())

    def __len__(self) -> int:
        return len(self.to_json())


def measure(threads: int | None = None, seconds: float = 0.6) -> Limits:
    """Measures all ceilings with `threads` threads (None: as many as the engine takes) in about `seconds` plus 0.3 s of set-up.

    Raises HardwareError for a thread count or a TAUT_ISA that cannot run here.
    """
    machine = runtime(threads)
    probe = native.module().LimitProbe(
        machine.threads, machine.isa
    )  # its buffer goes with it: it is no part of a model's memory
    quarter = seconds / 4
    return Limits(
        cpu=cpu_name(),
        threads=machine.threads,
        isa=machine.isa,
        int8_tops=probe.int8(quarter) / 1e12,
        bf16_tflops=probe.bf16(quarter) / 1e12 or None,
        fp32_tflops=probe.f32(quarter) / 1e12,
        read_gb_s=probe.read(quarter) / 1e9,
    )


def _round(value: float) -> float:
    return float(f"{value:.4g}")
