"""The engine's thread and its messages: order, isolation, cancellation, death. No HTTP."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from server.fakes import FakeLoop
from server.support import PATIENCE_S
from taut.errors import EngineStoppedError, OverloadedError, RequestError
from taut.scheduler.request import Event, FinishedEvent, GenerateRequest, TextEvent
from taut.server import bridge
from taut.server.bridge import SWITCH_INTERVAL_S, EngineThread, Subscription


def request(name: str, text: str = "hello", max_tokens: int = 100) -> GenerateRequest:
    return GenerateRequest(name, tuple(map(ord, text)), max_tokens)


async def drained(subscription: Subscription) -> list[Event]:
    events: list[Event] = []
    while not subscription.is_done:
        events += await subscription.take(PATIENCE_S)
    return events


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the awaited state was not reached"
        await asyncio.sleep(0.002)


@asynccontextmanager
async def running(loop: FakeLoop, **options: Any) -> AsyncIterator[EngineThread]:
    engine = EngineThread(loop, **options)
    engine.start()
    try:
        yield engine
    finally:
        loop.release.set()
        await engine.stop()


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 2 * PATIENCE_S))  # type: ignore[arg-type]


def test_events_arrive_in_order_and_end_once() -> None:
    async def test() -> None:
        async with running(FakeLoop()) as engine, engine.open([request("a"), request("b")]) as subscription:
            events = await drained(subscription)
        for name in ("a", "b"):
            mine = [event for event in events if event.request_id == name]
            assert [event.text for event in mine if isinstance(event, TextEvent)] == ["Hel", "lo", ", ", "world"]
            assert [isinstance(event, FinishedEvent) for event in mine] == [False] * 4 + [True]

    run(test)


def test_the_thread_sleeps_when_idle_and_wakes_for_work() -> None:
    async def test() -> None:
        loop = FakeLoop()
        async with running(loop) as engine:
            await asyncio.sleep(0.05)
            assert loop.steps == 0
            async with engine.open([request("a")]) as subscription:
                await drained(subscription)
            steps = loop.steps
            await asyncio.sleep(0.05)
            assert loop.steps == steps
            assert engine.is_alive
            assert not engine.is_stalled(0.01)

    run(test)
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S)


def test_a_long_sleep_is_a_rest_and_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "REST_AFTER_S", 0.05)

    async def test() -> None:
        loop = FakeLoop()
        async with running(loop) as engine:
            for rests in (1, 2):
                async with engine.open([request("a")]) as subscription:
                    await drained(subscription)
                await until(lambda rests=rests: loop.rests >= rests)  # type: ignore[misc]
                await asyncio.sleep(0.2)
                assert loop.rests == rests

    run(test)


def test_leaving_cancels_before_the_next_step() -> None:
    async def test() -> None:
        loop = FakeLoop(script=("x",) * 1000, step_s=0.01)
        async with running(loop) as engine:
            async with engine.open([request("a"), request("b")]) as subscription:
                await subscription.take(PATIENCE_S)
            left_at = loop.steps
            await until(lambda: not loop.has_work)
            assert {name for name, _ in loop.cancelled} == {"a", "b"}
            assert all(step <= left_at + 1 for _, step in loop.cancelled)

    run(test)


def test_leaving_while_waiting_for_acceptance_cancels_too() -> None:
    async def test() -> None:
        loop = FakeLoop(script=("x",) * 1000)
        async with running(loop) as engine, engine.open([request("a", "hang")]):
            await until(lambda: engine.heartbeat.busy_since is not None)
            with pytest.raises(asyncio.TimeoutError):  # the engine is in a step, so nothing is accepted
                await asyncio.wait_for(engine.open([request("b")]).__aenter__(), 0.05)
            loop.release.set()
            await until(lambda: "b" in dict(loop.cancelled))
            assert "b" not in loop.running

    run(test)


def test_a_refused_submission_raises_where_it_was_made() -> None:
    async def test() -> None:
        loop = FakeLoop()
        async with running(loop) as engine:
            with pytest.raises(OverloadedError, match="full"):
                async with engine.open([request("a"), request("b", "overload")]):
                    pass
            assert [name for name, _ in loop.cancelled] == ["a"], "all or none"
            async with engine.open([request("c")]) as subscription:
                assert len(await drained(subscription)) == 5

    run(test)


def test_a_submission_that_breaks_does_not_break_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        loop = FakeLoop()
        real = loop.submit

        def submit(item: Any) -> None:
            if item.request_id == "bad":
                raise ZeroDivisionError
            real(item)

        monkeypatch.setattr(loop, "submit", submit)
        async with running(loop) as engine:
            with pytest.raises(ZeroDivisionError):
                await engine.open([request("bad")]).__aenter__()
            async with engine.open([request("good")]) as subscription:
                assert len(await drained(subscription)) == 5

    run(test)


def test_death_ends_everybody_and_refuses_the_next() -> None:
    async def test() -> None:
        loop = FakeLoop(script=("x",) * 10_000, step_s=0.001)
        async with running(loop) as engine, engine.open([request("a")]) as first, engine.open([request("b", "die")]) as second:
            for subscription in (first, second):
                *_, last = await drained(subscription)
                assert isinstance(last, FinishedEvent)
                assert isinstance(last.error, EngineStoppedError)
            assert not engine.is_alive
            with pytest.raises(EngineStoppedError), engine.reserve(1):
                pass
            with pytest.raises(EngineStoppedError):
                await engine.open([request("c")]).__aenter__()

    run(test)


def test_stop_ends_everybody() -> None:
    async def test() -> None:
        loop = FakeLoop(script=("x",) * 10_000, step_s=0.001)
        async with running(loop) as engine, engine.open([request("a")]) as subscription:
            await subscription.take(PATIENCE_S)
            await engine.stop()
            *_, last = await drained(subscription)
            assert isinstance(last, FinishedEvent)
            assert last.reason == "error"
            assert [name for name, _ in loop.cancelled] == ["a"]

    run(test)
    assert not [thread for thread in threading.enumerate() if thread.name == "taut-engine"]


def test_a_step_that_hangs_is_seen() -> None:
    async def test() -> None:
        loop = FakeLoop()
        async with running(loop) as engine, engine.open([request("a", "hang")]):
            await until(lambda: engine.is_stalled(0.02))
            assert engine.is_alive
            assert not engine.is_stalled(60)
            loop.release.set()
            await until(lambda: not engine.is_stalled(0.02))

    run(test)


def test_reservations_bound_what_is_open() -> None:
    async def test() -> None:
        async with running(FakeLoop(), max_open=4) as engine:
            with engine.reserve(3):
                with pytest.raises(OverloadedError, match="4"), engine.reserve(2):
                    pass
                with engine.reserve(1):
                    assert engine.num_open == 4
            with engine.reserve(100):  # an idle server sheds nothing
                assert engine.num_open == 100
            with pytest.raises(RequestError), engine.reserve(1):
                raise RequestError("inside")
            assert engine.num_open == 0

    run(test)
