"""Steps allocate nothing once they have run; memory goes back after a peak; huge pages where there are any, ordinary ones else."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import numpy as np
import pytest

from cases.kernels import linear
from native.harness import isas, make_batch, make_data, make_plan, runtime
from taut.engine.executors import native as executors
from taut.engine.executors.native import HUGE_PAGE_BYTES, TRIM_RUNS, NativeExecutor
from taut.kernels import native

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]
FEATURES = 1024
THP = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def resident_bytes(address: int, size: int) -> int:
    """Committed bytes of the mappings inside [address, address + size)."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) < address + size and int(match[2], 16) > address
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def executor_of(tokens: int) -> tuple[NativeExecutor, dict[int, object]]:
    """An executor of one linear, and batches of 1 and of `tokens` tokens for it."""
    case = linear(FEATURES, FEATURES, tokens=tokens)
    data = make_data(case)
    return NativeExecutor(make_plan(case), data.store, runtime(isas()[-1], 2), None), {
        count: make_batch([count]) for count in (1, tokens)
    }


def committed(executor: NativeExecutor) -> int:
    return resident_bytes(executor._arena.ctypes.data, executor.arena_bytes)


def test_a_step_allocates_nothing() -> None:
    executor, batches = executor_of(64)
    for _ in range(20):
        executor.run(batches[64])
    address = executor._arena.ctypes.data
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        executor.run(batches[64])
        executor.run(batches[1])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 100, "fewer than one page in four runs"
    assert executor._arena.ctypes.data == address


def test_trim_gives_everything_back_and_the_next_run_is_the_same() -> None:
    executor, batches = executor_of(4096)
    first = executor.run(batches[4096])[0].copy()
    assert committed(executor) >= executor.arena_bytes // 2
    executor.trim()
    assert committed(executor) < HUGE_PAGE_BYTES
    executor.trim()
    assert np.array_equal(executor.run(batches[4096])[0][:, :FEATURES], first[:, :FEATURES], equal_nan=True)


def test_the_rest_of_a_peak_goes_back_while_small_steps_run() -> None:
    executor, batches = executor_of(4096)
    executor.run(batches[4096])
    peak = committed(executor)
    assert peak > 16 << 20
    for _ in range(2 * TRIM_RUNS):
        executor.run(batches[1])
    assert committed(executor) <= HUGE_PAGE_BYTES
    executor.run(batches[4096])
    assert committed(executor) >= peak // 2


def test_memory_in_use_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "TRIM_RUNS", 4)
    executor, batches = executor_of(4096)
    discards: list[int] = []
    keep = executor._keep
    monkeypatch.setattr(executor, "_keep", lambda size: (discards.append(size), keep(size)))
    for _ in range(8):
        for count in (1, 1, 4096):
            executor.run(batches[count])
    assert discards == []


def flags_of(address: int) -> str:
    """VmFlags of the mapping that holds `address`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= address < int(match[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line
    return ""


@pytest.mark.skipif(not THP.exists(), reason="the system has no transparent huge pages")
def test_huge_pages_are_asked_for() -> None:
    memory = native.memory(8 << 20)
    assert " hg" in flags_of(memory.address)
    assert " hg" not in flags_of(native.memory(8 << 20, huge_pages=False).address)


def test_ordinary_pages_do_the_same() -> None:
    """Where huge pages are refused."""
    memory = native.memory(3 << 20, huge_pages=False)
    array = memory.array()
    assert memory.address % (2 << 20) == 0
    array[...] = 7
    memory.discard(1 << 20, 1 << 20)
    assert not array[1 << 20 : 2 << 20].any()
    assert array[0] == array[-1] == 7
