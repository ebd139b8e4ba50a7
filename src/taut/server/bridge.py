"""The engine's thread, and the plain messages between it and the event loop.

The thread owns the Loop: it applies submissions and cancellations from an inbox, runs a step, and posts the step's events to
the event loop in one call. Neither side ever waits for the other: the event loop only appends to the inbox, the thread only
posts. Nothing here knows HTTP, and no message holds more than plain data, so the Loop can move to its own process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType

import anyio

from taut.engine.runtime import SWITCH_INTERVAL_S
from taut.errors import EngineStoppedError, OverloadedError, RequestError, TautError
from taut.scheduler.request import Event, FinishedEvent, Request, Usage
from taut.server.protocols import LoopLike, StatsLike

REST_AFTER_S = 5.0  # without work; then memory goes back to the system
COMPUTE_NICE = 5  # of the threads that compute, above the process's own: what answers and parses goes first

log = logging.getLogger("taut.server")


@dataclass(frozen=True)
class _Submit:
    """To the thread: take these requests, all or none."""

    group: int
    requests: tuple[Request, ...]


@dataclass(frozen=True)
class _Cancel:
    """To the thread: the listener has left."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True)
class _Stop:
    """To the thread: cancel everything and end."""


@dataclass(frozen=True)
class _Verdict:
    """From the thread: the Loop's answer to a _Submit; `error` None means accepted."""

    group: int
    error: Exception | None


@dataclass(frozen=True)
class Heartbeat:
    """What the thread last said of itself. `busy_since` is the start of the step that runs now (monotonic seconds)."""

    last_step_at: float
    busy_since: float | None = None
    step_s: float = 0.0
    stats: StatsLike | None = None


class Subscription:
    """The events of a group of requests. Entering submits them, raising what the Loop raises; leaving cancels what runs."""

    def __init__(self, engine: EngineThread, group: int, requests: tuple[Request, ...]) -> None:
        self._engine = engine
        self.group, self.requests = group, requests
        self.pending = {request.request_id for request in requests}
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._events: list[Event] = []
        self._ready = asyncio.Event()

    async def __aenter__(self) -> Subscription:
        self._engine._register(self)
        try:
            await self.accepted
        except BaseException:
            self._engine._leave(self)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine._leave(self)

    @property
    def is_done(self) -> bool:
        """Every request has ended and every event was taken."""
        return not self.pending and not self._events

    async def take(self, timeout_s: float | None = None) -> list[Event]:
        """All events since the last call, at least one; none when `timeout_s` passes in silence."""
        with anyio.move_on_after(timeout_s):  # asyncio.wait_for loses a cancellation that meets an event (before Python 3.12)
            await self._ready.wait()
        self._ready.clear()
        events, self._events = self._events, []
        return events

    def put(self, event: Event) -> None:
        if isinstance(event, FinishedEvent):
            self.pending.discard(event.request_id)
        self._events.append(event)
        self._ready.set()

    def fail(self, error: Exception) -> None:
        """End every request that still runs with `error`."""
        if not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # marked as seen: the waiter may have left already
        for request_id in tuple(self.pending):
            self.put(FinishedEvent(request_id, "error", Usage(0), error=error))


def compute_nice() -> int:
    """The nice value of compute threads: COMPUTE_NICE above the process's own."""
    return min(os.getpriority(os.PRIO_PROCESS, os.getpid()) + COMPUTE_NICE, 19)


def yield_cpu() -> None:
    """The calling thread, which takes part in computing, gives way to the threads that answer. Linux: nice values are per thread."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), compute_nice())


def _engine_dead() -> EngineStoppedError:
    return EngineStoppedError("the engine has stopped after an internal error; restart the server")


class EngineThread:
    """Runs a Loop on its own thread. Create, `start` and call it from the event loop's thread.

    `max_open` bounds the requests that are open at once, from before their tokenization to their end.
    """

    def __init__(self, loop: LoopLike, *, max_open: int = 1024) -> None:
        self._loop = loop
        self._max_open = max_open
        self._inbox: list[_Submit | _Cancel | _Stop] = []
        self._wake = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="taut-engine", daemon=True)
        self._live: set[str] = set()  # the engine thread's: what the Loop has taken and not finished
        self._listeners: dict[str, Subscription] = {}  # the event loop's, as all below
        self._groups: dict[int, Subscription] = {}
        self._numbers = itertools.count()
        self._reserved = 0
        self._failure: Exception | None = None
        self.is_draining = False
        self.heartbeat = Heartbeat(time.monotonic())

    # ---- the event loop's side

    def start(self) -> None:
        """Start the thread; events will come to the running event loop."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._event_loop = asyncio.get_running_loop()
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """The thread runs and has not failed. Idle is alive."""
        return self._failure is None and self._thread.is_alive()

    def is_stalled(self, after_s: float) -> bool:
        """Whether one step has been running for more than `after_s` seconds."""
        busy_since = self.heartbeat.busy_since
        return busy_since is not None and time.monotonic() - busy_since > after_s

    @property
    def num_open(self) -> int:
        return self._reserved

    @contextmanager
    def reserve(self, count: int) -> Iterator[None]:
        """Room for `count` requests while the block runs; costs nothing to refuse, so ask before tokenizing."""
        self._check_running()
        if self._reserved and self._reserved + count > self._max_open:
            raise OverloadedError(f"the server has {self._reserved} open requests; the limit is {self._max_open}")
        self._reserved += count
        try:
            yield
        finally:
            self._reserved -= count

    def check_size(self, count: int, num_tokens: int = 0) -> None:
        """RequestError for what could never be submitted together, however idle the engine is."""
        for given, most, what in (
            (count, self._loop.max_queued, "sequences (prompts times n)"),
            (num_tokens, self._loop.max_queued_tokens, "prompt tokens (those of each of the n choices counted)"),
        ):
            if given > most:
                raise RequestError(f"the request makes {given} {what}; at most {most} are taken in one request")

    def open(self, requests: Sequence[Request]) -> Subscription:
        """A subscription that submits `requests` together when entered."""
        return Subscription(self, next(self._numbers), tuple(requests))

    def begin_drain(self) -> None:
        """Take no new requests from now on; those that run go on."""
        self.is_draining = True

    def fail_all(self, error: Exception) -> None:
        """End every open request with `error`."""
        for subscription in tuple(self._groups.values()):
            pending = tuple(subscription.pending)
            subscription.fail(error)
            self._post_inbox(_Cancel(pending))

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Cancel everything and end the thread; gives up waiting after `timeout_s`."""
        self.begin_drain()
        self._post_inbox(_Stop())
        await asyncio.to_thread(self._thread.join, timeout_s)

    def _check_running(self) -> None:
        if self.is_draining:
            raise EngineStoppedError("the server is shutting down and takes no new requests")
        if not self.is_alive:
            raise _engine_dead()

    def _register(self, subscription: Subscription) -> None:
        if not self.is_alive:  # draining is not asked again: what was let in may finish
            raise _engine_dead()
        self._groups[subscription.group] = subscription
        self._listeners.update((request_id, subscription) for request_id in subscription.pending)
        self._post_inbox(_Submit(subscription.group, subscription.requests))

    def _leave(self, subscription: Subscription) -> None:
        self._groups.pop(subscription.group, None)
        for request in subscription.requests:
            self._listeners.pop(request.request_id, None)
        if subscription.pending:
            self._post_inbox(_Cancel(tuple(subscription.pending)))

    def _post_inbox(self, message: _Submit | _Cancel | _Stop) -> None:
        with self._wake:
            self._inbox.append(message)
            self._wake.notify()

    def _on_verdict(self, verdict: _Verdict) -> None:
        subscription = self._groups.get(verdict.group)
        if subscription is None or subscription.accepted.done():
            return
        if verdict.error is None:
            subscription.accepted.set_result(None)
        else:
            subscription.pending.clear()
            subscription.accepted.set_exception(verdict.error)

    def _on_events(self, events: list[Event]) -> None:
        for event in events:
            subscription = self._listeners.get(event.request_id)
            if subscription is not None and event.request_id in subscription.pending:
                subscription.put(event)

    def _on_end(self) -> None:
        for subscription in tuple(self._groups.values()):
            subscription.fail(EngineStoppedError("the engine has stopped; the request was not finished"))

    # ---- the engine thread's side

    def _run(self) -> None:
        yield_cpu()
        try:
            while self._apply(self._take_inbox()):
                if self._loop.has_work:
                    self._step()
                self.heartbeat = Heartbeat(time.monotonic(), None, self.heartbeat.step_s, self._loop.stats())
        except BaseException as error:
            self._failure = error if isinstance(error, Exception) else EngineStoppedError(type(error).__name__)
            log.exception("the engine thread has failed")
        finally:
            self.heartbeat = Heartbeat(time.monotonic(), None, self.heartbeat.step_s, self.heartbeat.stats)
            self._post_event_loop(self._on_end)

    def _take_inbox(self) -> list[_Submit | _Cancel | _Stop]:
        """The messages that wait; sleeps for one when the Loop has no work. A Loop that sleeps long is told to rest."""
        if not self._wait(REST_AFTER_S):
            self._loop.rest()
            self._wait(None)
        with self._wake:
            messages, self._inbox = self._inbox, []
            return messages

    def _wait(self, timeout_s: float | None) -> bool:
        """Whether there was something to do before `timeout_s` had passed."""
        with self._wake:
            return bool(self._wake.wait_for(lambda: self._inbox or self._loop.has_work, timeout_s))

    def _apply(self, messages: list[_Submit | _Cancel | _Stop]) -> bool:
        """Tell the Loop of `messages`; False when one of them is _Stop."""
        for message in messages:
            if isinstance(message, _Submit):
                self._post_event_loop(self._on_verdict, _Verdict(message.group, self._submit(message.requests)))
            else:
                self._cancel(message.request_ids if isinstance(message, _Cancel) else tuple(self._live))
        return not any(isinstance(message, _Stop) for message in messages)

    def _submit(self, requests: tuple[Request, ...]) -> Exception | None:
        for done, request in enumerate(requests):
            try:
                self._loop.submit(request)
            except Exception as error:
                if not isinstance(error, TautError):
                    log.exception("a submission failed")
                self._cancel(tuple(earlier.request_id for earlier in requests[:done]))
                return error
            self._live.add(request.request_id)
        return None

    def _cancel(self, request_ids: tuple[str, ...]) -> None:
        for request_id in request_ids:
            if request_id in self._live:
                self._live.discard(request_id)
                self._loop.cancel(request_id)

    def _step(self) -> None:
        began = time.monotonic()
        self.heartbeat = Heartbeat(self.heartbeat.last_step_at, began, self.heartbeat.step_s, self.heartbeat.stats)
        events = self._loop.step()
        ended = time.monotonic()
        self.heartbeat = Heartbeat(ended, None, self.heartbeat.step_s + ended - began, self.heartbeat.stats)
        self._live.difference_update(event.request_id for event in events if isinstance(event, FinishedEvent))
        if events:
            self._post_event_loop(self._on_events, events)

    def _post_event_loop(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the event loop has closed: nobody is left to tell
            self._event_loop.call_soon_threadsafe(call, *arguments)
