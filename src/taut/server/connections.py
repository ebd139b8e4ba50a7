"""The connections: how many there are, and how long each may take over every part of every request.

Knows sockets, uvicorn's HTTP/1.1 protocol and h11's states; no route. A connection has a timer at all times: whatever it is
doing, it must come to an end of it or be closed.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import ipaddress
import logging
import math
import resource
import socket
import time
from collections import Counter
from typing import Any, Literal

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from taut.server.failures import CLOSE, Failure, retry_after
from taut.server.metrics import Metrics
from taut.server.settings import Settings

RESERVED_FILES = 64  # file descriptors kept for everything that is no connection
ACCEPTS_AT_ONCE = 8  # a refused socket lives for some four rounds of the event loop: fewer than the reserve
BACKLOG = 1024
BODY_GRACE_S = 1.0  # the route answers 408 when its own timeout has passed; this one is for bodies that no route reads
MIN_READ_BYTES_S = 1024  # slower readers than this hold a connection for nothing
LOG_EVERY_S = 60.0
NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("taut.server")


class Listener(socket.socket):
    """A listening socket whose `accept` fails once and not a thousand times when the process is out of file descriptors.

    asyncio pauses after such a failure, but (up to Python 3.11) first makes all its further attempts, each with a log entry.
    """

    _is_out = False

    def accept(self) -> tuple[socket.socket, Any]:
        if self._is_out:
            self._is_out = False
            raise BlockingIOError  # asyncio's end of a round
        try:
            return super().accept()
        except OSError as error:
            self._is_out = error.errno in NO_RESOURCES
            raise

    def listen(self, backlog: int = BACKLOG) -> None:
        """asyncio's `backlog` is also how many connections it accepts in one round; the kernel's queue is always BACKLOG long."""
        super().listen(BACKLOG)


class Seldom:
    """What may be logged, but not each time."""

    def __init__(self, every_s: float = LOG_EVERY_S) -> None:
        self._every_s, self._next_at = every_s, -math.inf

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._every_s
        return True


class Connections:
    """Who is connected, and whether one more may be. The event loop's."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.most = _within_file_limit(settings.max_connections)
        self._by_address: Counter[str] = Counter()
        self._refusal_log = Seldom()

    def enter(self, address: str) -> Literal["total", "address"] | None:
        """Count a connection from `address`, or say which limit it would break; then it is not counted."""
        most_here = self.settings.max_connections_per_address
        if self._by_address.total() >= self.most:
            return self._refused("total", self.most)
        if most_here is not None and self._by_address[address] >= most_here:
            return self._refused("address", most_here)
        self._by_address[address] += 1
        self.metrics.connections.inc()
        return None

    def leave(self, address: str) -> None:
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
        self.metrics.connections.dec()

    def _refused(self, limit: Literal["total", "address"], most: int) -> Literal["total", "address"]:
        self.metrics.connections_refused.labels(limit).inc()
        if self._refusal_log.is_due():
            log.warning("refusing connections: %d are open%s", most, " from one address" if limit == "address" else "")
        return limit


def _within_file_limit(asked: int) -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or asked <= soft - RESERVED_FILES:
        return asked
    most = max(1, soft - RESERVED_FILES)
    log.info("at most %d connections instead of %d: the process may open %d files (ulimit -n)", most, asked, soft)
    return most


class Phase(enum.Enum):
    """What a connection is doing, by what is to come next."""

    IDLE = "idle"  # the first byte of a header
    HEADER = "header"  # its end
    BODY = "body"  # the end of the body, whether a route reads it or not
    ANSWER = "answer"  # the server's bytes, and the client's reading of them


class Connection(H11Protocol):
    """One HTTP/1.1 connection. Every phase of each of its requests has a deadline; what is no HTTP is answered 400."""

    def __init__(self, connections: Connections, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._all, self._metrics = connections, connections.metrics
        self._timing, self._body_s = connections.settings.timing, connections.settings.limits.body_timeout_s
        self._address: str | None = None  # while it counts
        self._watched: tuple[Phase, object] | None = None  # and the request: each has its own time
        self._timer: asyncio.TimerHandle | None = None
        self._unsent: float = math.inf  # bytes, at the last look

    # ---- what happens to it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # else a peer that is gone keeps its buffer for long
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self._timing.write_s * 1000))
        address = _network(self.client[0] if self.client else "")
        if (limit := self._all.enter(address)) is None:
            self._address = address
        else:
            self._end_with(_refusal(limit))
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unsent = math.inf

    def shutdown(self) -> None:
        super().shutdown()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        if self._address is not None:
            self._all.leave(self._address)

    def send_400_response(self, msg: str) -> None:
        """The client's bytes are no HTTP. They may come in the middle of an answer, or after it; then there is nothing to say."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the route's own answer has no place any more
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._end_with(Failure(400, "the request is not valid HTTP", "invalid_http", headers=CLOSE))
        else:
            self.transport.close()

    def _end_with(self, failure: Failure) -> None:
        self._metrics.count_error(failure)
        self.transport.write(_on_the_wire(failure.response()))
        self.transport.close()

    # ---- how long it takes

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's clock knows one phase only. It has no say here."""

    def _watch(self) -> None:
        """Start the clock anew when another phase, or the same phase of another request, has begun."""
        watched = (self._phase(), self.cycle)
        if watched != self._watched:
            self._watched = watched
            self._unsent = math.inf
            self._start_clock()

    def _phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.ANSWER
        if self.conn.their_state is h11.IDLE:
            return Phase.HEADER if self.conn.trailing_data[0] else Phase.IDLE
        return Phase.BODY if self.conn.their_state is h11.SEND_BODY else Phase.ANSWER

    def _start_clock(self) -> None:
        assert self._watched is not None
        if self._timer is not None:
            self._timer.cancel()
        phase, request = self._watched
        allowed_s = {
            Phase.IDLE: self._timing.header_s if request is None else self._timing.keep_alive_s,
            Phase.HEADER: self._timing.header_s,
            Phase.BODY: self._body_s + BODY_GRACE_S,
            Phase.ANSWER: self._timing.write_s,
        }[phase]
        self._timer = self.loop.call_later(allowed_s, self._time_is_up)

    def _time_is_up(self) -> None:
        assert self._watched is not None
        phase, _ = self._watched
        if phase is Phase.ANSWER and self._is_read():
            self._start_clock()
            return
        self._metrics.connections_timed_out.labels(phase.value).inc()
        if phase is Phase.ANSWER:
            self.transport.abort()
        else:
            self.transport.close()
            self._watch()

    def _is_read(self) -> bool:
        """Whether the client takes what it is sent. Asked once in `write_s`; while the engine works there may be nothing to take."""
        if not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent = math.inf
            return True
        before, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        return self._unsent <= before - MIN_READ_BYTES_S * self._timing.write_s


def _network(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 that an IPv6 host has to itself."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


def _refusal(limit: Literal["total", "address"]) -> Failure:
    whose = "the server has as many connections as it takes" if limit == "total" else "your address has too many connections"
    return Failure(503, f"{whose}; close some or retry later", "too_many_connections", headers=CLOSE | retry_after(1.0))


def _on_the_wire(response: Response) -> bytes:
    fields = b"".join(b"%s: %s\r\n" % field for field in response.raw_headers)
    return b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (
        response.status_code,
        STATUS_PHRASES[response.status_code],
        fields,
        bytes(response.body),
    )
