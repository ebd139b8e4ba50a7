"""How one API call becomes engine work and then a response: reserve, tokenize, submit, follow the events, watch the client.

The dialect (field names, chunks) belongs to the Job; here is only the life of a request: errors before the first byte have
their own status, a client that leaves or stops reading cancels its work, and whatever happens the engine's side is cleaned
up.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from taut.errors import EngineStoppedError, TautError
from taut.scheduler.request import Event, FinishedEvent, Request, TextEvent
from taut.server.bridge import EngineThread, Subscription
from taut.server.failures import failure_of
from taut.server.metrics import Metrics, RequestTimer
from taut.server.served import Served
from taut.server.settings import Settings

TOKENIZER_THREADS = 2
PARSER_THREADS = 1  # for large bodies; parsing two at once would take as long and hold twice the memory
INLINE_REQUESTS = 8  # a larger answer (many vectors) is written as JSON off the event loop

T = TypeVar("T")
log = logging.getLogger("taut.server")


@dataclass
class Services:
    """What a route needs. One per app."""

    settings: Settings
    served: Served
    engine: EngineThread
    metrics: Metrics
    tokenizing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(TOKENIZER_THREADS))
    parsing: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(PARSER_THREADS))


class Job(Protocol):
    """One validated call of some dialect. `requests` tokenizes and runs in a worker thread; the rest only shapes JSON."""

    route: str
    num_requests: int

    def requests(self) -> Sequence[Request]: ...

    def whole(self, result: Result) -> dict[str, Any]: ...


class StreamedJob(Job, Protocol):
    """A job that can also be told in chunks, each one `data:` line."""

    def opening(self) -> list[dict[str, Any]]: ...
    def delta(self, index: int, text: str) -> dict[str, Any]: ...
    def ending(self, index: int, reason: str) -> dict[str, Any]: ...
    def closing(self, result: Result) -> list[dict[str, Any]]: ...


class Result:
    """What the events of a job have added up to; the i-th request is the i-th choice."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.indices = {request.request_id: index for index, request in enumerate(requests)}
        self.finished: dict[int, FinishedEvent] = {}
        self._pieces: list[list[str]] = [[] for _ in requests]

    def add(self, event: Event) -> None:
        """Raises the error of a request that failed."""
        index = self.indices[event.request_id]
        if isinstance(event, TextEvent):
            self._pieces[index].append(event.text)
            return
        self.finished[index] = event
        if event.reason == "error":
            assert event.error is not None
            raise event.error
        if event.reason == "cancelled":
            raise EngineStoppedError("the request was cancelled by the server")

    @property
    def texts(self) -> list[str]:
        return ["".join(pieces) for pieces in self._pieces]


class ClientGoneError(Exception):
    """The client has left, or has stopped reading; there is nobody to answer."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client leaves first, cancels it and raises ClientGoneError. Call it after the body."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def answering(services: Services, job: Job) -> AsyncIterator[Subscription]:
    """The events of `job` while the block runs. Room is reserved before tokenizing; what still runs at the end is cancelled."""
    services.engine.check_size(job.num_requests)
    with services.engine.reserve(job.num_requests):
        requests = await to_thread.run_sync(job.requests, limiter=services.tokenizing)
        services.engine.check_size(len(requests), sum(len(request.prompt) for request in requests))
        async with services.engine.open(requests) as subscription:
            yield subscription


class _Answer:
    """A response that is worked out while it is being sent."""

    def __init__(self, services: Services, job: Any) -> None:
        self._services, self._job = services, job
        self._timer = RequestTimer(services.metrics, job.route)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            end = await until_disconnect(receive, self._work(send))
            await end(scope, receive, send)  # not watched: after the last byte the server reports a disconnect of its own
        except ClientGoneError:
            scope["taut.client_gone"] = True
            self._services.metrics.aborted.labels(self._job.route).inc()

    async def _work(self, send: Send) -> ASGIApp:
        """Do everything but the end of the response, and return that."""
        raise NotImplementedError


class WholeAnswer(_Answer):
    """One JSON body when everything is done. `job` is a Job."""

    async def _work(self, send: Send) -> ASGIApp:
        job: Job = self._job
        async with answering(self._services, job) as subscription:
            result = Result(subscription.requests)
            while not subscription.is_done:
                events = await subscription.take()
                self._timer.see(events)
                for event in events:
                    result.add(event)
        if job.num_requests <= INLINE_REQUESTS:
            return JSONResponse(job.whole(result))
        return await to_thread.run_sync(lambda: JSONResponse(job.whole(result)))


class StreamAnswer(_Answer):
    """Server-sent events: a `data:` line per chunk, comments while nothing happens, `[DONE]` at the end. `job` is a
    StreamedJob."""

    _HEADERS = (
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    )

    async def _work(self, send: Send) -> ASGIApp:
        async with answering(self._services, self._job) as subscription:
            await send({"type": "http.response.start", "status": 200, "headers": list(self._HEADERS)})
            try:
                await self._follow(subscription, send)
            except ClientGoneError:
                raise
            except Exception as error:  # too late for a status: the error is the last event, and [DONE] is not sent
                if not isinstance(error, TautError):
                    log.exception("a stream failed")
                failure = failure_of(error)
                self._services.metrics.count_error(failure)
                await self._send(send, _data([failure.body()]))
        return self._end

    async def _follow(self, subscription: Subscription, send: Send) -> None:
        job: StreamedJob = self._job
        result = Result(subscription.requests)
        await self._send(send, _data(job.opening()))
        while not subscription.is_done:
            events = await subscription.take(self._services.settings.timing.ping_s)
            self._timer.see(events)
            if not events:
                await self._send(send, b": ping\n\n")
            chunks: list[dict[str, Any]] = []
            try:
                for event in _merged(events):
                    result.add(event)
                    chunks += _chunk(job, result.indices[event.request_id], event)
            finally:  # what came before a failure is still sent
                await self._send(send, _data(chunks))
        await self._send(send, _data(job.closing(result)) + b"data: [DONE]\n\n")

    async def _end(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, data: bytes, *, more: bool = True) -> None:
        """Send `data`, unless there is none; ClientGoneError when the client does not read it in time."""
        if not data and more:
            return
        message = {"type": "http.response.body", "body": data, "more_body": more}
        try:
            with anyio.fail_after(self._services.settings.timing.write_s):
                await send(message)
        except TimeoutError:
            raise ClientGoneError from None


def _merged(events: list[Event]) -> list[Event]:
    """`events` with neighbouring texts of one request joined: a reader that is behind gets fewer, longer chunks."""
    merged: list[Event] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextEvent) and isinstance(last, TextEvent) and last.request_id == event.request_id:
            merged[-1] = TextEvent(event.request_id, last.text + event.text, last.token_ids + event.token_ids)
        else:
            merged.append(event)
    return merged


def _chunk(job: StreamedJob, index: int, event: Event) -> list[dict[str, Any]]:
    if isinstance(event, FinishedEvent):
        return [job.ending(index, event.reason)]
    return [job.delta(index, event.text)] if event.text else []


def _data(chunks: list[dict[str, Any]]) -> bytes:
    lines = (json.dumps(chunk, ensure_ascii=False, allow_nan=False, separators=(",", ":")) for chunk in chunks)
    return "".join(f"data: {line}\n\n" for line in lines).encode("utf-8", "replace")
