"""From an address to a running server and back: the socket, uvicorn, signals and the drain.

SIGTERM or SIGINT: the listening socket closes, running requests get `drain_s` to finish, what is left then ends with an error
event, and the process exits with 0. A second signal ends at once.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from taut.errors import EngineStoppedError, PortInUseError, UsageError
from taut.server.answer import Services
from taut.server.connections import ACCEPTS_AT_ONCE, NO_RESOURCES, Connection, Connections, Listener, Seldom
from taut.server.settings import Settings

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
    listener = Listener(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()  # only a listening socket keeps the next server from the same port
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


class Server(uvicorn.Server):
    """uvicorn with taut's drain: exit code 0, any second signal forces, and no request ends without a word."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        self._services: Services = app.state.services
        self._accept_log = Seldom()
        timing = settings.timing
        connections = Connections(settings, self._services.metrics)
        config = uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], functools.partial(Connection, connections)),
            ws="none",
            loop="asyncio",
            lifespan="on",
            access_log=False,
            log_level="error",  # its warnings are of what clients do
            backlog=ACCEPTS_AT_ONCE,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(timing.drain_s) + AFTER_DRAIN_S,
            h11_max_incomplete_event_size=settings.limits.header_bytes,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Being out of file descriptors is said once a minute; asyncio tries again each second, for as long as it lasts."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in NO_RESOURCES and "socket" in context):
            loop.default_exception_handler(context)
            return
        self._services.metrics.accept_errors.inc()
        if self._accept_log.is_due():
            log.warning("no new connections: %s; raise `ulimit -n` or lower --max-connections", error.strerror)

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
