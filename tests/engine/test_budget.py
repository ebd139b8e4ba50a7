"""The memory budget under cgroup v1, v2 and none (bug report K2), and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from taut.engine.budget import PROCESS_BYTES, available_bytes, check_given, grant
from taut.engine.kv_cache import KVLayout
from taut.errors import MemoryBudgetError

MB = 1 << 20
LAYOUT = KVLayout(24, 32, 64)


def fake_root(tmp_path: Path, files: dict[str, str]) -> str:
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:  8388608 kB\n", **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(tmp_path)


def test_no_cgroup(tmp_path: Path) -> None:
    assert available_bytes(fake_root(tmp_path, {})) == 8 << 30


def test_v2_nested_the_tightest_counts_and_page_cache_does_not(tmp_path: Path) -> None:
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/memory.max": f"{1024 * MB}\n",
            "sys/fs/cgroup/pod/memory.current": f"{600 * MB}\n",
            "sys/fs/cgroup/pod/memory.stat": f"anon {100 * MB}\ninactive_file {400 * MB}\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{500 * MB}\n",
        },
    )
    assert available_bytes(root) == (1024 - 200) * MB


def test_v1_with_its_unlimited_sentinel(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory"
    root = fake_root(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/a\n4:memory:/a\n",
            f"{base}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{base}/memory.usage_in_bytes": "1\n",
            f"{base}/a/memory.limit_in_bytes": f"{512 * MB}\n",
            f"{base}/a/memory.usage_in_bytes": f"{128 * MB}\n",
            f"{base}/a/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert available_bytes(root) == 384 * MB


def test_what_is_left_becomes_cache() -> None:
    budget = grant(4 << 30, 2 << 30, 100 * MB, (LAYOUT, 8192, 16))
    assert PROCESS_BYTES + budget.weight_bytes + budget.activation_bytes + budget.kv_bytes <= 4 << 30
    assert budget.kv_blocks == ((2 << 30) - 100 * MB - PROCESS_BYTES) // LAYOUT.block_bytes


def test_never_more_cache_than_can_be_used() -> None:
    assert grant(1 << 50, 0, 0, (LAYOUT, 1000, 2)).kv_tokens == 2 * 1024


def test_refusal_says_how_much_is_missing() -> None:
    with pytest.raises(
        MemoryBudgetError, match=r"process 134\.22 MB \+ weights 1\.71 GB .* the budget is 1\.00 GB: 8\d\d\.\d\d MB are missing"
    ):
        grant(10**9, 1_710_000_000, 0, (LAYOUT, 8192, 16))


def test_a_budget_beyond_the_machine_is_refused(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n"})
    check_given(None, root)
    check_given(8 << 30, root)
    with pytest.raises(MemoryBudgetError, match=r"8\.59 GB is given, but the machine has 8\.58 GB; give --memory at most that"):
        check_given((8 << 30) + 1, root)


def test_a_budget_beyond_the_cgroup_is_refused(tmp_path: Path) -> None:
    files = {"memory.max": f"{512 * MB}\n", "memory.current": "1\n", "memory.stat": "anon 1\n"}
    root = fake_root(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 8388608 kB\nMemAvailable: 1024 kB\n",
            "proc/self/cgroup": "0::/box\n",
            **{f"sys/fs/cgroup/box/{name}": text for name, text in files.items()},
        },
    )
    check_given(512 * MB, root)
    with pytest.raises(MemoryBudgetError, match=r"1\.08 GB is given, but the cgroup .* has 536\.87 MB"):
        check_given(1 << 30, root)
