"""The runtime follows the CPUs that it may use, and its pool survives having more threads than there are."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cases.kernels import linear
from native.harness import isas, make_data, make_plan
from taut.engine import runtime as runtimes
from taut.engine.executors.native import NativeExecutor
from taut.engine.runtime import REREAD_S, Runtime
from taut.kernels import native

built = pytest.mark.skipif(not isas(), reason="the native module is not built")


class Groups:
    """A fake control group tree, and the process's membership of it."""

    def __init__(self, folder: Path) -> None:
        self.root, self.membership = folder / "cgroup", folder / "membership"
        self.root.mkdir()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def quota(self) -> float:
        return runtimes.cpu_quota(self.root, self.membership)


@pytest.fixture
def groups(tmp_path: Path) -> Groups:
    return Groups(tmp_path)


def test_no_quota(groups: Groups) -> None:
    assert groups.quota() == math.inf
    groups.write("cpu.max", "max 100000\n")
    groups.write("cpu/cpu.cfs_quota_us", "-1\n")
    groups.write("cpu/cpu.cfs_period_us", "100000\n")
    assert groups.quota() == math.inf


def test_quota_v2_of_the_own_group_and_those_above(groups: Groups) -> None:
    groups.membership.write_text("0::/pods/one\n")
    groups.write("pods/cpu.max", "350000 100000\n")
    groups.write("pods/other/cpu.max", "100000 100000\n")
    assert groups.quota() == 3.5
    groups.write("pods/one/cpu.max", "150000 100000\n")
    assert groups.quota() == 1.5
    groups.membership.write_text("0::/outside/of/this/container\n")
    groups.write("cpu.max", "50000 100000\n")
    assert groups.quota() == 0.5


def test_quota_v1_of_the_own_group_and_those_above(groups: Groups) -> None:
    groups.membership.write_text("5:memory:/docker/b\n4:cpu,cpuacct:/docker/a\n")
    groups.write("cpu/cpu.cfs_quota_us", "400000\n")
    groups.write("cpu/cpu.cfs_period_us", "100000\n")
    assert groups.quota() == 4
    groups.write("cpu/docker/a/cpu.cfs_quota_us", "250000\n")
    groups.write("cpu/docker/a/cpu.cfs_period_us", "100000\n")
    assert groups.quota() == 2.5


@pytest.mark.parametrize("text", ["", "x y", "100000", "100000 0", "-5 100000", "1 2 3", "\xff\xfe"])
def test_a_quota_that_is_none_is_no_limit(groups: Groups, text: str) -> None:
    groups.write("cpu.max", text)
    assert groups.quota() == math.inf


def test_physical_cores(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    assert runtimes.physical_cores({0, 1, 2, 3}, tmp_path) == 2
    assert runtimes.physical_cores({0, 2}, tmp_path) == 1
    assert runtimes.physical_cores({7, 8}, tmp_path) == 2


def test_default_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtimes, "affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(runtimes, "physical_cores", lambda cpus: 4)
    for quota, threads in ((math.inf, 4), (2.5, 2), (0.5, 1), (9, 4)):
        monkeypatch.setattr(runtimes, "cpu_quota", lambda quota=quota: quota)
        assert runtimes.default_threads() == threads


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The quota that the runtime reads, on a machine of four CPUs; change entry 0."""
    value = [4.0]
    monkeypatch.setattr(runtimes, "affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(runtimes, "cpu_quota", lambda: value[0])
    return value


@built
@pytest.mark.native
def test_active_threads_follow_the_quota(quota: list[float]) -> None:
    machine = Runtime(3, native.runnable_isas()[-1])
    now = 1e9
    assert machine.pool.active == 3
    for allowed, active in ((2.5, 2), (0.3, 1), (1, 1), (3, 3), (4, 3), (math.inf, 3), (1.99, 1)):
        quota[0] = allowed
        machine.adapt(now)
        assert machine.pool.active == active
        now += REREAD_S
    assert machine.threads == 3


@built
@pytest.mark.native
def test_the_quota_is_read_seldom(quota: list[float]) -> None:
    machine = Runtime(3, native.runnable_isas()[-1])
    machine.adapt(1e9)
    quota[0] = 1
    machine.adapt(1e9 + REREAD_S / 2)
    assert machine.pool.active == 3
    machine.adapt(1e9 + REREAD_S)
    assert machine.pool.active == 1


@built
@pytest.mark.native
def test_results_do_not_depend_on_the_active_threads() -> None:
    case = linear(576, 1536, tokens=70)
    data, machine = make_data(case), Runtime(4, native.runnable_isas()[-1])
    executor = NativeExecutor(make_plan(case), data.store, machine, None)
    expected = executor.run(data.batch)[0].copy()
    for active in (1, 2, 3, 4, 2, 1):
        machine.pool.set_active(active)
        assert np.array_equal(executor.run(data.batch)[0], expected)


@built
@pytest.mark.native
def test_parked_threads_stay_out_and_come_back() -> None:
    pool = native.thread_pool(4)
    for active in (1, 4, 2, 0, 9):
        pool.set_active(active)
        assert pool.active == min(max(active, 1), 4)
        for _ in range(50):
            assert pool.count_items(64) == 64


@built
@pytest.mark.native
def test_the_number_of_threads_changes_beside_running_jobs() -> None:
    pool, stop = native.thread_pool(4), threading.Event()

    def change() -> None:
        while not stop.is_set():
            for active in (1, 3, 2, 4):
                pool.set_active(active)

    changer = threading.Thread(target=change)
    changer.start()
    try:
        for _ in range(400):
            assert pool.count_items(32) == 32
    finally:
        stop.set()
        changer.join()


@contextmanager
def busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@built
@pytest.mark.native
def test_more_threads_than_cpus_do_not_collapse() -> None:
    """Twice the threads that fit, beside a busy process: at least 0.6 times the speed of as many as fit."""
    cpus = len(os.sched_getaffinity(0))
    fitting, crowded = native.thread_pool(max(cpus, 1)), native.thread_pool(2 * cpus)
    with busy_process():
        best = 0.0
        for _ in range(5):  # the machine's other load comes and goes: the best ratio of neighbours in time counts
            best = max(best, fitting.burn(400, 16, 10_000) / crowded.burn(400, 16, 10_000))
    assert best >= 0.6


@built
@pytest.mark.native
@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="needs nice values")
def test_workers_take_a_nice_value() -> None:
    script = """
import os, pathlib
from taut.kernels import native
pool, mine = native.thread_pool(3), os.getpriority(os.PRIO_PROCESS, 0)
assert pool.set_nice(mine + 1)
nices = [os.getpriority(os.PRIO_PROCESS, int(task.name)) for task in pathlib.Path("/proc/self/task").iterdir()]
assert sorted(nices)[-2:] == [mine + 1] * 2, nices
assert os.getpriority(os.PRIO_PROCESS, 0) == mine
assert pool.count_items(100) == 100
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)
