"""Clients that hold on to connections: each phase has its deadline, there are only so many, and running out of sockets is quiet."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import resource
import socket
import time
from typing import Any

import httpx
import pytest

from server.fakes import FakeLoop, FakeModel
from server.support import CHAT, PATIENCE_S, Live, http_request, live_server, metric, user, wait_until
from taut.server.connections import RESERVED_FILES, Connections, _network
from taut.server.metrics import Metrics
from taut.server.run import bind
from taut.server.settings import Limits, Settings, Timing

HEALTH = b"GET /livez HTTP/1.1\r\nhost: x\r\n"
OK = b"HTTP/1.1 200 OK"
SHORT = Settings(timing=Timing(header_s=0.5, keep_alive_s=1, write_s=0.5), limits=Limits(body_timeout_s=0.5))


def drip(client: socket.socket, piece: bytes) -> None:
    """Send `piece` again and again, as slowly as a client that wants to stay, until the server ends the connection."""
    deadline = time.monotonic() + PATIENCE_S
    client.settimeout(0.05)
    while time.monotonic() < deadline:
        try:
            client.sendall(piece)
            if client.recv(4096) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("the connection was never closed")


def timed_out(live: Live, phase: str) -> float:
    with live.client() as checker:
        text = checker.get("/metrics").text
    name = f'taut_connections_timed_out_total{{phase="{phase}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


@pytest.mark.parametrize(
    ("phase", "sent", "piece"),
    [
        ("idle", b"", b""),
        ("header", b"GET /livez HTTP/1.1\r\n", b"x: y\r\n"),
        ("idle", HEALTH + b"\r\n", b""),
        ("header", HEALTH + b"\r\n", b"G"),
        ("header", (HEALTH + b"\r\n") * 3 + HEALTH, b"x: y\r\n"),
        ("body", HEALTH + b"content-length: 100000\r\n\r\n", b"x"),
        ("body", HEALTH + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        ("body", HEALTH + b"\r\n" + HEALTH + b"content-length: 100000\r\n\r\n", b"x"),
        ("body", HEALTH + b"content-length: 100000\r\n\r\n", b""),
        ("idle", HEALTH + b"content-length: 1\r\n\r\nx", b""),
    ],
    ids=itertools.count(),
)
def test_every_phase_of_every_request_has_a_deadline(phase: str, sent: bytes, piece: bytes) -> None:
    with live_server(settings=SHORT) as live:
        with live.connect() as client:
            client.sendall(sent)
            drip(client, piece)
        wait_until(lambda: not live.server.server_state.connections)
        assert timed_out(live, phase) == 1


def test_a_body_that_no_route_reads_may_take_its_time() -> None:
    with live_server() as live, live.connect() as client:
        client.sendall(HEALTH + b"content-length: 4\r\n\r\n")
        received = b""
        for byte in b"abcd":
            received += client.recv(4096) if not received else b""
            client.sendall(bytes([byte]))
        client.sendall(HEALTH + b"connection: close\r\n\r\n")
        while data := client.recv(4096):
            received += data
        assert received.count(OK) == 2, "the connection serves the next request"


def test_a_reader_that_is_too_slow_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_USER_TIMEOUT")  # the kernel sees only a reader that has stopped
    with live_server(settings=SHORT) as live, live.connect(receive_bytes=4096) as client:
        client.settimeout(0.05)

        def is_dropped() -> bool:
            try:
                client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 500)
            except TimeoutError:
                pass
            except OSError:
                return True
            client.recv(1)
            return not live.server.server_state.connections

        wait_until(is_dropped)
        assert timed_out(live, "answer") == 1


def test_a_long_answer_is_no_silence() -> None:
    model = FakeModel(FakeLoop(script=("x",), step_s=0.005), context_len=90_000)
    with live_server(model, SHORT) as live:
        whole, streamed = live.connect(), live.connect()
        whole.sendall(http_request(CHAT, {"messages": user("go on")}))
        streamed.sendall(http_request(CHAT, {"messages": user("go on"), "stream": True}))
        wait_until(lambda: len(model.loop.running) == 2)
        time.sleep(3 * SHORT.timing.write_s)
        model.loop.release.set()
        for client in (whole, streamed):
            assert client.recv(4096).startswith(OK)
            client.close()


def test_connections_are_bounded() -> None:
    with live_server(settings=Settings(max_connections=3)) as live, live.client() as checker:
        assert checker.get("/livez").status_code == 200  # stays connected
        held = [live.connect(), live.connect()]
        wait_until(lambda: metric(checker, "taut_connections") == 3)
        response = httpx.get(live.url + "/livez", timeout=PATIENCE_S)
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "too_many_connections"
        assert response.headers["connection"] == "close"
        assert int(response.headers["retry-after"]) >= 1
        assert metric(checker, "taut_connections_refused_total") == 1
        assert checker.get("/livez").status_code == 200, "who is connected is served"
        held.pop().close()
        wait_until(lambda: metric(checker, "taut_connections") == 2)
        assert httpx.get(live.url + "/livez", timeout=PATIENCE_S).status_code == 200
        held.pop().close()


def test_connections_of_one_address_are_bounded() -> None:
    settings = Settings(max_connections_per_address=1)
    with live_server(settings=settings) as live, live.client() as checker:
        assert checker.get("/livez").status_code == 200
        with live.connect() as other:
            answer = other.recv(4096)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"your address" in answer
        assert 'taut_connections_refused_total{limit="address"} 1.0' in checker.get("/metrics").text


def test_an_address_is_what_a_client_cannot_change() -> None:
    assert _network("192.0.2.1") == _network("::ffff:192.0.2.1") == "192.0.2.1"
    assert _network("2001:db8::1") == _network("2001:db8::2:3") != _network("2001:db8:0:1::1")
    assert _network("fe80::1%eth0") == "fe80::/64"
    assert _network("") == ""


def test_refusals_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(Settings(max_connections=1), Metrics(None))  # type: ignore[arg-type]
    assert connections.enter("a") is None
    assert [connections.enter("b") for _ in range(100)] == ["total"] * 100
    connections.leave("a")
    assert connections.enter("b") is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("files", "most"), [(256, 256 - RESERVED_FILES), (10, 1), (10**6, 1024), (resource.RLIM_INFINITY, 1024)]
)
def test_connections_are_fewer_than_files(files: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert Connections(Settings(), Metrics(None)).most == most  # type: ignore[arg-type]


def test_a_round_of_accepts_ends_at_the_first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [errno.EMFILE, errno.EMFILE, errno.ECONNABORTED, errno.ENFILE]

    def failing_accept(self: socket.socket) -> Any:
        raise OSError(failures.pop(0), "failed")

    monkeypatch.setattr(socket.socket, "accept", failing_accept)
    with bind("127.0.0.1", 0) as listener:
        seen = []
        for _ in range(7):
            with pytest.raises(OSError) as caught:  # noqa: PT011
                listener.accept()
            seen.append(type(caught.value) if caught.value.errno is None else caught.value.errno)
    ends = BlockingIOError
    assert seen == [errno.EMFILE, ends, errno.EMFILE, ends, errno.ECONNABORTED, errno.ENFILE, ends]


def test_being_out_of_files_is_quiet_and_passes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    is_out = True
    accept = socket.socket.accept

    def failing_accept(self: socket.socket) -> tuple[socket.socket, Any]:
        if not is_out:
            return accept(self)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.05)
    caplog.set_level(logging.WARNING)
    with live_server() as live:
        errors = live.app.state.services.metrics.accept_errors
        monkeypatch.setattr(socket.socket, "accept", failing_accept)
        with live.connect() as client:
            client.sendall(HEALTH + b"\r\n")
            wait_until(lambda: errors._value.get() >= 5)
            is_out = False
            assert client.recv(4096).startswith(OK), "it waited in the kernel's queue"
    assert [record.getMessage().partition(";")[0] for record in caplog.records if "connections" in record.getMessage()] == [
        "no new connections: Too many open files"
    ]
    assert not [record for record in caplog.records if record.exc_info]
