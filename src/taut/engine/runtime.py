"""The runtime: compute threads, ISA and memory, shared by every model of the process.

Threads = min(CPU affinity, floor(cgroup quota), physical cores): a thread more than the machine gives stalls all the others. The quota
and the affinity may change while the process runs: `adapt` follows them, between steps.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taut.engine.sampler import NON_FINITE, RowChoice, uniform
from taut.errors import HardwareError, NumericalError
from taut.kernels import native

CGROUP = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
CPUS = Path("/sys/devices/system/cpu")
REREAD_S = 2.0  # reading the quota takes 0.1 ms

SWITCH_INTERVAL_S = 1e-4  # at Python's 5 ms a busy thread delays a 1.6 ms native call to 6.7 ms

log = logging.getLogger(__name__)


class Runtime:
    """Threads and memory of one thread count and ISA."""

    def __init__(self, threads: int, isa: str) -> None:
        self.isa = isa
        self.pool = native.thread_pool(threads)
        self._usable, self._read_at = usable_cpus(), time.monotonic()

    @property
    def threads(self) -> int:
        """Compute threads, the caller among them; fewer are active while the quota allows no more."""
        return self.pool.size

    def adapt(self, now_s: float | None = None) -> None:
        """As many active threads as affinity and quota allow now, up to the pool's size. Call it between steps: it looks at most
        every REREAD_S seconds. Results do not depend on it."""
        now_s = time.monotonic() if now_s is None else now_s
        if now_s - self._read_at < REREAD_S:
            return
        before, self._usable, self._read_at = self._usable, usable_cpus(), now_s
        if self._usable == before:
            return
        active = min(self.pool.size, self._usable)
        if active != self.pool.active:
            log.info("this process may use %d CPUs now: %d of %d threads compute", self._usable, active, self.pool.size)
        self.pool.set_active(active)

    def set_nice(self, value: int) -> bool:
        """The workers' nice value; the thread that runs steps sets its own. False when the system refuses."""
        return self.pool.set_nice(value)

    def allocate(self, size: int) -> NDArray[np.uint8]:
        """Zeroed bytes at a 2 MiB boundary, in huge pages where the system has them; the array owns them."""
        return native.memory(size).array()[:size]

    @property
    def packers(self) -> dict[str, Callable[..., None]]:
        """The native packers of int8 and int4 weights on these threads."""
        return {
            kind: functools.partial(pack, pool=self.pool) for kind, pack in (("q8", native.pack_q8), ("q4", native.pack_q4))
        }

    def sample(self, logits: NDArray[np.float32], rows: Sequence[RowChoice]) -> list[int | NumericalError]:
        """As engine/sampler.py: the token of each of the `logits` (rows, vocab), or the error that stops its request alone."""
        choices = [(r.temperature, r.top_k, r.top_p, r.min_p, uniform(r.seed, r.choice, r.position)) for r in rows]
        if not choices:
            return []
        ids = native.sample(logits, np.array(choices, np.float64), self.pool, self.isa)
        return [int(token) if token >= 0 else NumericalError(NON_FINITE) for token in ids]


@contextmanager
def short_switches() -> Iterator[None]:
    """Inside, a thread that comes back from a native call gets the interpreter within SWITCH_INTERVAL_S, however busy other threads
    are with Python. The setting is the process's: it is put back at the end."""
    before = sys.getswitchinterval()
    if before <= SWITCH_INTERVAL_S:
        yield
        return
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before + 5e-7)  # whole microseconds are kept, rounded down: what was read would lose one


_runtimes: dict[tuple[int, str], Runtime] = {}
_lock = threading.Lock()


def runtime(threads: int | None = None) -> Runtime:
    """The process's runtime with `threads` compute threads (None: as many as the machine gives).

    Raises HardwareError when more threads are asked than CPUs may be used, or TAUT_ISA names an ISA that cannot run.
    """
    usable = len(affinity())
    if threads is not None and not 1 <= threads <= usable:
        raise HardwareError(f"{threads} threads were asked for; this process may use 1 to {usable} CPUs")
    key = (threads if threads is not None else default_threads(), native.select_isa())
    with _lock:
        if key not in _runtimes:
            _runtimes[key] = Runtime(*key)
        return _runtimes[key]


def default_threads() -> int:
    """min(affinity, floor(cgroup quota), physical cores among them), at least 1."""
    return min(physical_cores(affinity()), usable_cpus())


def usable_cpus() -> int:
    """min(affinity, floor(cgroup quota)), at least 1."""
    return max(1, math.floor(min(cpu_quota(), len(affinity()))))


def affinity() -> set[int]:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def physical_cores(cpus: set[int], root: Path = CPUS) -> int:
    """Cores that `cpus` belong to; the number of CPUs where the system does not say."""
    cores = set()
    for cpu in cpus:
        text = _read(root / f"cpu{cpu}" / "topology" / "thread_siblings_list")
        cores.add(text if text else str(cpu))
    return len(cores)


def cpu_quota(root: Path = CGROUP, membership: Path = MEMBERSHIP) -> float:
    """CPUs that the control groups of the process allow (v2 and v1: its own group and those above), infinite when unlimited."""
    lines = [line.split(":", 2) for line in _read(membership).splitlines() if line.count(":") >= 2]
    v2 = next((path for _, controllers, path in lines if not controllers), "/")
    v1 = next((path for _, controllers, path in lines if "cpu" in controllers.split(",")), "/")
    quotas = [_quota_v2(folder) for folder in _upwards(root, v2)] + [_quota_v1(folder) for folder in _upwards(root / "cpu", v1)]
    return min(quotas)


def _upwards(root: Path, path: str) -> list[Path]:
    """The group `path` under `root` and those above it. In a container the path may be one outside: only the root is there then."""
    own = root / path.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder == root or root in folder.parents]


def _quota_v1(folder: Path) -> float:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        return int(quota) / int(period)
    return math.inf


def _quota_v2(folder: Path) -> float:
    fields = _read(folder / "cpu.max").split()
    if len(fields) == 2 and all(field.isdigit() for field in fields) and int(fields[1]) > 0:
        return int(fields[0]) / int(fields[1])
    return math.inf


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
