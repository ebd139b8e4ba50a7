"""How much memory a model may use, and what fits: total = weights + KV cache + activations, against one budget."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from taut.engine.kv_cache import BLOCK_TOKENS, KVLayout, blocks_for
from taut.errors import MemoryBudgetError
from taut.units import show_bytes

# Left to the interpreter, the server, the tokenizer and the operating system when the budget is derived from what is free.
RESERVE_BYTES = 384 << 20
# The process itself: interpreter, libraries, tokenizer, server, text in flight. Part of every budget, given or derived.
PROCESS_BYTES = 128 << 20
UNLIMITED = 1 << 60  # cgroup v1 writes a huge number for "no limit"


def available_bytes(root: str = "/") -> int:
    """Memory that may still be used: the least of MemAvailable and every enclosing cgroup's limit minus its non-reclaimable use.
    `root` replaces / in tests."""
    found = [_meminfo(Path(root) / "proc/meminfo", "MemAvailable"), *(room for _, room in _cgroups(Path(root)))]
    return max(0, min(found))


def check_given(budget_bytes: int | None, root: str = "/") -> None:
    """MemoryBudgetError when a budget that was given is more than the machine, or an enclosing cgroup, has in all."""
    limits = [_meminfo(Path(root) / "proc/meminfo", "MemTotal"), *(limit for limit, _ in _cgroups(Path(root)))]
    if budget_bytes is not None and budget_bytes > min(limits):
        owner = "the machine" if limits[0] == min(limits) else "the cgroup (the container's limit)"
        raise MemoryBudgetError(
            f"a memory budget of {show_bytes(budget_bytes, math.ceil)} is given, but {owner} has {show_bytes(min(limits), math.floor)}; "
            "give --memory at most that, or leave it out to take what is free"
        )


def _meminfo(path: Path, field: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroups(root: Path) -> list[tuple[int, int]]:
    """(limit, limit minus non-reclaimable use) of every enclosing cgroup that has a limit."""
    found = []
    for relative, controllers in _memberships(root / "proc/self/cgroup"):
        v2 = controllers == ""
        base = root / ("sys/fs/cgroup" if v2 else "sys/fs/cgroup/memory")
        names = ("memory.max", "memory.current", "memory.stat", "inactive_file")
        if not v2:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file")
        inner = base / relative.lstrip("/")
        for folder in (inner, *inner.parents):
            if base not in (folder, *folder.parents):
                break
            found += _limit(folder, names)
    return found


def _memberships(path: Path) -> list[tuple[str, str]]:
    """(path of the cgroup, its controllers) for cgroup v2 (no controllers named) and v1's memory controller."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    split = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return [(where, controllers) for _, controllers, where in split if controllers == "" or "memory" in controllers.split(",")]


def _limit(folder: Path, names: tuple[str, str, str, str]) -> list[tuple[int, int]]:
    limit_name, use_name, stat_name, reclaimable = names
    try:
        limit = (folder / limit_name).read_text().strip()
        if limit == "max" or int(limit) >= UNLIMITED:
            return []
        used = int((folder / use_name).read_text())
        stat = dict(line.split()[:2] for line in (folder / stat_name).read_text().splitlines() if " " in line)
        return [(int(limit), int(limit) - (used - int(stat.get(reclaimable, 0))))]
    except (OSError, ValueError):
        return []


@dataclass(frozen=True)
class Budget:
    """What was granted, in bytes. `kv_blocks` is 0 for encoders."""

    total_bytes: int
    weight_bytes: int
    activation_bytes: int
    kv_blocks: int
    kv_bytes: int

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * BLOCK_TOKENS


def grant(budget_bytes: int | None, weight_bytes: int, activation_bytes: int, kv: tuple[KVLayout, int, int] | None) -> Budget:
    """Divide the budget. `kv` is (layout, context_len, most sequences): the cache gets what is left, at most what the sequences can use.

    MemoryBudgetError when not even one sequence of 256 tokens (or of the whole context, if shorter) fits, saying how much is missing.
    """
    total = budget_bytes if budget_bytes is not None else max(0, available_bytes() - RESERVE_BYTES)
    left = total - weight_bytes - activation_bytes - PROCESS_BYTES
    if kv is None:
        _check(left, total, weight_bytes, activation_bytes, 0)
        return Budget(total, weight_bytes, activation_bytes, 0, 0)
    layout, context_len, sequences = kv
    least = blocks_for(min(context_len, 256))
    _check(left - least * layout.block_bytes, total, weight_bytes, activation_bytes, least * layout.block_bytes)
    blocks = min(left // layout.block_bytes, sequences * blocks_for(context_len))
    return Budget(total, weight_bytes, activation_bytes, blocks, blocks * layout.block_bytes)


def _check(left: int, total: int, weights: int, activations: int, kv: int) -> None:
    if left < 0:
        raise MemoryBudgetError(
            f"the model does not fit: process {show_bytes(PROCESS_BYTES)} + weights {show_bytes(weights)} + activations {show_bytes(activations)}"
            + (f" + the smallest KV cache {show_bytes(kv)}" if kv else "")
            + f" = {show_bytes(total - left, math.ceil)}, the budget is {show_bytes(total)}: {show_bytes(-left, math.ceil)} are missing. "
            "Raise --memory, or choose a smaller model (int8 takes a quarter of fp32)"
        )
