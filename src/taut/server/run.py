"""From an address to a running server and back: the socket, uvicorn, signals and the drain.

SIGTERM or SIGINT: the listening socket closes, running requests get `drain_s` to finish, what is left then ends with an error
event, and the process exits with 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from taut.errors import EngineStoppedError, PortInUseError, UsageError
from taut.server.answer import Services
from taut.server.settings import Settings

BACKLOG = 1024
AFTER_DRAIN_S = 2  # for the last error events to reach their clients

log = logging.getLogger("taut.server")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Call it before loading the model: a taken port then costs no wait, and early clients queue.

    Raises PortInUseError when the address is taken, UsageError when it is none of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError, OverflowError):
        raise UsageError(f"{host!r} is no address of this machine; try --host 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # only a listening socket keeps the next server from the same port
    except PermissionError:
        listener.close()
        raise UsageError(f"port {port} needs privileges; choose one from 1024 on") from None
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(f"port {port} on {host} is in use; stop what listens there or choose another --port") from None
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return listener


def address_of(listener: socket.socket) -> str:
    """The URL at which `listener` is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: Starlette, listener: socket.socket, settings: Settings) -> None:
    """Serve `app` on `listener` until a signal. Returns after a clean drain."""
    Server(app, settings).run(sockets=[listener])


class TimedProtocol(H11Protocol):
    """HTTP/1.1 whose connections must send their first header within `header_s` and read what they are sent within `write_s`."""

    header_s = 10.0
    write_s = 30.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):  # else a peer that never reads keeps its buffer for ever
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(self.write_s * 1000))
        self.loop.call_later(self.header_s, self._close_if_silent, transport)

    def _close_if_silent(self, transport: asyncio.Transport) -> None:
        scope: object = self.scope
        if scope is None and not transport.is_closing():  # no request has begun
            transport.close()


class Server(uvicorn.Server):
    """uvicorn with taut's drain: exit code 0, any second signal forces, and no request ends without a word."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        timing = settings.timing
        config = uvicorn.Config(
            app,
            http=type("Protocol", (TimedProtocol,), {"header_s": timing.header_s, "write_s": timing.write_s}),
            ws="none",
            loop="asyncio",
            lifespan="on",
            access_log=False,
            log_level="warning",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=timing.keep_alive_s,
            timeout_graceful_shutdown=int(timing.drain_s) + AFTER_DRAIN_S,
            h11_max_incomplete_event_size=settings.limits.header_bytes,
        )
        super().__init__(config)
        self._services: Services = app.state.services

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not recorded as captured: uvicorn would raise it again at the end, and a clean drain exits with 0.
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.engine.begin_drain()
        if not self.force_exit:
            log.warning("shutting down; %d open requests get %g s", self._services.engine.num_open, self._drain_s)
        deadline = asyncio.get_running_loop().call_later(self._drain_s, self._give_up)
        try:
            await super().shutdown(sockets)
        finally:
            deadline.cancel()

    @property
    def _drain_s(self) -> float:
        return self._services.settings.timing.drain_s

    def _give_up(self) -> None:
        self._services.engine.fail_all(EngineStoppedError("the server is shutting down; the request was not finished"))
