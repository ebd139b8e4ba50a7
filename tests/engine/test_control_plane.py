"""The engine leaves the interpreter and the CPUs to the threads that answer."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import taut
from taut.engine.runtime import SWITCH_INTERVAL_S
from taut.server.bridge import COMPUTE_NICE, EngineThread, compute_nice


def test_switches_are_short_during_a_step_and_only_then(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    started_with = sys.getswitchinterval()
    sys.setswitchinterval(0.0049)
    model = taut.load(str(tiny_models["llama"]), executor="reference", memory_bytes=1 << 30)
    step, before, seen = model.loop.step, sys.getswitchinterval(), []

    def spy() -> Any:
        seen.append(sys.getswitchinterval())
        return step()

    monkeypatch.setattr(model.loop, "step", spy)
    model.generate([5, 6, 7], max_tokens=2)
    assert seen
    assert max(seen) <= SWITCH_INTERVAL_S * 1.01
    assert sys.getswitchinterval() == before == pytest.approx(0.0049)
    sys.setswitchinterval(started_with + 5e-7)


class _Idle:
    """A Loop that has never any work."""

    max_queued = max_queued_tokens = 1
    has_work = False

    def stats(self) -> None:
        return None

    def rest(self) -> None:
        raise AssertionError("it did not sleep for long")

    def step(self) -> list[Any]:
        return []


@pytest.mark.skipif(sys.platform != "linux", reason="nice values of threads are Linux's")
def test_the_engine_thread_gives_way() -> None:
    before = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert compute_nice() == min(before + COMPUTE_NICE, 19)

    async def nice_of_the_thread() -> int:
        engine = EngineThread(_Idle())  # type: ignore[arg-type]
        engine.start()
        (thread,) = (t for t in threading.enumerate() if t.name == "taut-engine")
        for _ in range(500):
            if os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) != before:
                break
            await asyncio.sleep(0.01)
        found = os.getpriority(os.PRIO_PROCESS, thread.native_id or 0)
        await engine.stop()
        return found

    interval = sys.getswitchinterval()
    try:
        assert asyncio.run(nice_of_the_thread()) == compute_nice()
    finally:
        sys.setswitchinterval(interval + 5e-7)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
