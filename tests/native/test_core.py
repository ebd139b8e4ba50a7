"""Threads, memory, dispatch, aborting and the runtime's limits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from cases.kernels import linear, plain
from native.harness import isas, make_data, make_plan, runtime
from taut.engine import runtime as runtimes
from taut.engine.executors.native import NativeExecutor, StepAborted, f32_segments
from taut.errors import HardwareError, RequestError
from taut.kernels import native

built = pytest.mark.skipif(not isas(), reason="the native module is not built")
BEST = isas()[-1] if isas() else ""


@built
@pytest.mark.native
def test_threads_run_every_item_once() -> None:
    pool = native.thread_pool(8)  # more than there are cores
    started = time.monotonic()
    for count in (0, 1, 2, 7, 1000):
        assert pool.count_items(count) == count
    for _ in range(300):
        assert pool.count_items(16) == 16
    assert time.monotonic() - started < 20


@built
@pytest.mark.native
def test_an_exception_reaches_the_caller_and_the_pool_lives_on() -> None:
    pool = native.thread_pool(3)
    for item in (0, 57, 99):
        with pytest.raises(RuntimeError, match=f"item {item} fails"):
            pool.count_items(100, item)
        assert pool.count_items(100) == 100


@built
@pytest.mark.native
def test_memory_is_aligned_zeroed_and_outlives_its_owner() -> None:
    memory = native.memory(5 << 20)
    assert memory.address % (2 << 20) == 0
    array = memory.array()
    array[...] = 7
    memory.discard(1 << 20, 1 << 20)
    assert array[(1 << 20) - 1] == 7
    assert not array[1 << 20 : 2 << 20].any()
    del memory
    assert array[-1] == 7
    with pytest.raises(MemoryError):
        native.memory(1 << 62)


@built
@pytest.mark.native
def test_forced_isa() -> None:
    script = "from taut.kernels import native; print(native.select_isa())"
    for isa in isas():
        done = subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "TAUT_ISA": isa}, capture_output=True, text=True
        )
        assert done.stdout.split() == [isa]
    with pytest.raises(HardwareError, match=r"no kernels named mmx.*TAUT_ISA"):
        native.select_isa("mmx")
    if "avx512" not in isas():
        with pytest.raises(HardwareError, match="cannot run avx512"):
            native.select_isa("avx512")


def test_missing_module_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_built", lambda: False)
    with pytest.raises(HardwareError, match="pip install"):
        native.select_isa()


@built
@pytest.mark.native
def test_abort_stops_a_step() -> None:
    case = plain("silu", 64)
    data, machine = make_data(case), runtime(BEST)
    executor = NativeExecutor(make_plan(case), data.store, machine, None)
    executor.run(data.batch)
    with pytest.raises(StepAborted):
        executor.run(data.batch, abort=np.ones(1, np.int32))
    executor.run(data.batch, abort=np.zeros(1, np.int32))


@built
@pytest.mark.native
def test_abort_from_another_thread_is_prompt() -> None:
    case = linear(2048, 8192, tokens=400)
    data, machine = make_data(case), runtime(BEST)
    executor = NativeExecutor(make_plan(case), data.store, machine, None)
    started = time.monotonic()
    executor.run(data.batch)
    whole = time.monotonic() - started
    flag = np.zeros(1, np.int32)
    timer = threading.Timer(whole / 20, lambda: flag.__setitem__(0, 1))  # runs: the GIL is released
    timer.start()
    started = time.monotonic()
    with pytest.raises(StepAborted):
        executor.run(data.batch, abort=flag)
    assert time.monotonic() - started < whole * 0.8


@built
@pytest.mark.native
def test_arena_grows_and_can_be_returned() -> None:
    case = plain("silu", 64)
    data, machine = make_data(case), runtime(BEST)
    executor = NativeExecutor(make_plan(case), data.store, machine, None)
    assert executor.arena_bytes == 0
    executor.run(data.batch)
    assert executor.arena_bytes > 0
    executor.trim()
    executor.run(data.batch)


@built
@pytest.mark.native
def test_a_wrong_batch_is_refused() -> None:
    case = plain("silu", 64)
    data, machine = make_data(case), runtime(BEST)
    executor = NativeExecutor(make_plan(case), data.store, machine, None)
    with pytest.raises(RequestError, match="steps"):
        executor.run(data.batch, 0, 2)


def test_f32_segments_are_as_equal_as_whole_units_allow() -> None:
    assert f32_segments(1) == [0, 1, 1, 1, 1]
    assert f32_segments(576) == [0, 192, 320, 448, 576]
    assert f32_segments(2048) == [0, 512, 1024, 1536, 2048]
    for k in (3, 12, 96, 100, 130, 576, 768):
        bounds = f32_segments(k)
        sizes = np.diff(bounds)
        unit = next((unit for unit in (128, 64, 32, 4) if k % unit == 0), 2)
        assert bounds[-1] == k
        assert all(bound % unit == 0 or bound == k for bound in bounds)
        assert sizes.max() - sizes.min() <= unit


@built
@pytest.mark.native
def test_too_many_threads_are_refused() -> None:
    with pytest.raises(HardwareError, match="threads"):
        runtimes.runtime(len(runtimes.affinity()) + 1)
    assert runtimes.runtime(1) is runtimes.runtime(1)
