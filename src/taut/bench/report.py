"""Benchmark results as records (JSON with machine, versions and commit) and as text for a terminal."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Where a figure was measured. Nothing in it names a host or a user."""
    return {
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: found for name in ("taut", "numpy", "tokenizers") if (found := _version(name))},
        "commit": _commit(),
    }


def record(command: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with everything needed to judge it later."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"command": command, "time": now, "machine": machine(), "result": dict(result)}


def save(folder: Path, name: str, command: str, result: Mapping[str, Any]) -> Path:
    """Write the record as folder/name.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(record(command, result), indent=1) + "\n", encoding="utf-8")
    return path


def text(result: Mapping[str, Any]) -> str:
    """A result in a few aligned lines; nested values are shown with dotted names, repetitions left out."""
    rows = [(name, value) for name, value in _flat("", result) if not isinstance(value, list)]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:{width}}  {_shown(name, value)}" for name, value in rows)


def _flat(prefix: str, value: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, item in value.items():
        found += _flat(f"{prefix}{name}.", item) if isinstance(item, Mapping) else [(prefix + name, item)]
    return found


def _shown(name: str, value: Any) -> str:
    if name.startswith("of_limit") and isinstance(value, float):
        return f"{value:.1%}"
    if name.endswith("_bytes"):
        return f"{value / 1e9:.3f} GB"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The source tree's commit, with a + when it has changes; None where there is no repository."""
    here = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty=+"], capture_output=True, text=True, timeout=10
        )
    except OSError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
