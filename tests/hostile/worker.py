"""Run as a program by test_hostile: opens every case under an address-space limit and reports, as JSON, what did not
fail as expected.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
from pathlib import Path

from hostile.make import CASES, write_case


def _open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def _peak_rss_bytes() -> int:
    """Of this program alone: ru_maxrss would start at the size of the test process that it was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    root, memory_bytes = Path(sys.argv[1]), int(sys.argv[2])
    targets = {name: write_case(name, root) for name in CASES}
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    before, wrong = _open_files(), []
    for name, case in CASES.items():
        try:
            case.act(targets[name])
            wrong.append(f"{name}: no error")
        except case.error as error:
            if case.message not in str(error):
                wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
    report = {
        "count": len(CASES),
        "wrong": wrong,
        "open_files_before": before,
        "open_files_after": _open_files(),
        "peak_rss_bytes": _peak_rss_bytes(),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
