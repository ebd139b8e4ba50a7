"""`taut limits`: the record, and that the figures can be what they claim."""

from __future__ import annotations

import json

import pytest

from native_q8.harness import ISAS
from taut.bench import limits, report
from taut.kernels import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not ISAS, reason="the native core is not built")]
NAMES = ["cpu", "threads", "isa", "int8_tops", "bf16_tflops", "fp32_tflops", "read_gb_s"]


def test_record() -> None:
    measured = limits.measure(1, seconds=0.1)
    record = json.loads(json.dumps(measured.to_json()))
    assert list(record) == NAMES
    assert dict(measured) == record
    assert record["threads"] == 1
    assert record["isa"] in ISAS
    assert record["cpu"] == report.cpu_name() != ""


@pytest.mark.parametrize("isa", ISAS)
def test_rates_are_plausible(isa: str) -> None:
    probe = native.module().LimitProbe(1, isa)
    int8, f32, read = probe.int8(0.03), probe.f32(0.03), probe.read(0.03)
    assert 1e8 < f32 < 1e12  # one core: at most 2 x 32 lanes x 2 operations at 6 GHz
    assert 1e8 < int8 < (1.3e13 if isa == "amx" else 4e12)  # a tile of 16 x 16 x 64 multiply-adds takes 16 cycles
    assert 1e8 < read < 1e12


@pytest.mark.skipif("avx2" not in ISAS, reason="needs AVX2")
def test_a_wider_isa_is_faster() -> None:
    scalar, avx2 = (native.module().LimitProbe(1, isa) for isa in ("scalar", "avx2"))
    assert avx2.int8(0.05) > 1.3 * scalar.int8(0.05)
    assert avx2.f32(0.05) > 1.3 * scalar.f32(0.05)
