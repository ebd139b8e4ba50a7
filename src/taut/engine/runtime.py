"""The runtime: compute threads, ISA and memory, shared by every model of the process.

Threads = min(CPU affinity, floor(cgroup quota), physical cores): a thread more than the machine gives stalls all the others.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taut.engine.sampler import NON_FINITE, RowChoice, uniform
from taut.errors import HardwareError, NumericalError
from taut.kernels import native

CGROUP = Path("/sys/fs/cgroup")
CPUS = Path("/sys/devices/system/cpu")


class Runtime:
    """Threads and memory of one thread count and ISA."""

    def __init__(self, threads: int, isa: str) -> None:
        self.isa = isa
        self.pool = native.thread_pool(threads)

    @property
    def threads(self) -> int:
        return self.pool.size

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
    cpus = affinity()
    return max(1, min(len(cpus), physical_cores(cpus), math.floor(min(cpu_quota(), len(cpus)))))


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


def cpu_quota(root: Path = CGROUP) -> float:
    """CPUs that the control group allows (v2, then v1), infinite when unlimited."""
    quotas = [_quota_v2(folder) for folder in _ancestors(root)]
    v1 = root / "cpu"
    quota, period = _read(v1 / "cpu.cfs_quota_us"), _read(v1 / "cpu.cfs_period_us")
    if quota.lstrip("-").isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        quotas.append(int(quota) / int(period))
    return min(quotas, default=math.inf)


def _ancestors(root: Path) -> list[Path]:
    """The process's v2 group and those above it: each may limit it."""
    line = next((line for line in _read(Path("/proc/self/cgroup")).splitlines() if line.startswith("0::")), "0::/")
    own = root / line[3:].lstrip("/")
    return [folder for folder in (own, *own.parents) if folder == root or root in folder.parents]


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
