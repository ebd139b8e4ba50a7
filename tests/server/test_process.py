"""The server as a process: its port, its open files, and its end, by drain and by signal."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest

from server.fakes import FakeLoop, FakeModel
from server.support import (
    CHAT,
    PATIENCE_S,
    endless,
    http_request,
    live_server,
    metric,
    read_all,
    user,
    wait_until,
)
from taut.errors import PortInUseError, UsageError
from taut.server.run import address_of, bind
from taut.server.settings import Settings, Timing


def test_a_taken_port() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortInUseError, match=str(port)):
            bind("127.0.0.1", port)
    listener = bind("127.0.0.1", port)
    assert address_of(listener) == f"http://127.0.0.1:{port}"
    with pytest.raises(PortInUseError):  # before anything accepts
        bind("127.0.0.1", port)
    listener.close()
    with pytest.raises(UsageError, match=r"no address|cannot listen"):
        bind("203.0.113.1", 0)


def test_drain_lets_running_streams_finish() -> None:
    model = FakeModel(FakeLoop(script=("x",), step_s=0.01), context_len=90_000)
    with live_server(model) as live:
        clients = [live.connect() for _ in range(3)]
        for client in clients:
            client.sendall(http_request(CHAT, {"messages": user("go on"), "stream": True}))
        wait_until(lambda: len(model.loop.running) == 3)
        live.server.handle_exit(signal.SIGTERM, None)
        wait_until(lambda: live.app.state.services.engine.is_draining)
        model.loop.release.set()
        for client in clients:
            received = read_all(client)
            assert received.count(b'"content":"x') >= 1
            assert b"[DONE]" in received
            client.close()
        assert not model.loop.cancelled, "nothing was cut short"


def test_drain_gives_up_with_a_word() -> None:
    with live_server(endless(), Settings(timing=Timing(drain_s=0.3))) as live, live.connect() as client:
        client.sendall(http_request(CHAT, {"messages": user(), "stream": True}))
        client.recv(100)
        live.server.handle_exit(signal.SIGTERM, None)
        received = read_all(client)
        assert b"shutting down" in received
        assert b"[DONE]" not in received


SERVER = textwrap.dedent(
    """
    import resource, sys
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]), int(sys.argv[3])))
    from server.fakes import FakeLoop, FakeModel
    from taut.server.app import create_app
    from taut.server.run import address_of, bind, run
    from taut.server.settings import Settings, Timing
    settings = Settings(timing=Timing(drain_s=float(sys.argv[1])))
    listener = bind("127.0.0.1", 0)
    app = create_app(FakeModel(FakeLoop(script=("x",) * int(sys.argv[2]), step_s=0.01), context_len=90000), settings)
    print(address_of(listener), flush=True)
    run(app, listener, settings)
    """
)


class Process:
    def __init__(self, drain_s: float, num_pieces: int, num_files: int = 1024) -> None:
        tests = str(Path(__file__).parents[1])
        paths = [tests, *(path for path in sys.path if path)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(drain_s), str(num_pieces), str(num_files)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(paths)},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def stream_in_thread(self) -> tuple[threading.Thread, list[str]]:
        lines: list[str] = []
        started = threading.Event()

        def read() -> None:
            try:
                with httpx.stream(
                    "POST", self.url + CHAT, json={"messages": user(), "stream": True}, timeout=PATIENCE_S
                ) as response:
                    for line in response.iter_lines():
                        lines.append(line)
                        started.set()
            except httpx.HTTPError as error:
                lines.append(type(error).__name__)

        thread = threading.Thread(target=read)
        thread.start()
        assert started.wait(PATIENCE_S)
        return thread, lines

    def connect(self) -> socket.socket:
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), PATIENCE_S)

    def is_closed_to_new_clients(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return True
        return False

    def end(self) -> tuple[int, str]:
        _, stderr = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, stderr


def test_sigterm_drains_and_exits_with_0() -> None:
    server = Process(drain_s=100, num_pieces=80)
    thread, lines = server.stream_in_thread()
    server.process.send_signal(signal.SIGTERM)
    code, stderr = server.end()
    thread.join(PATIENCE_S)
    assert code == 0, stderr
    assert lines[-2] == "data: [DONE]" or "data: [DONE]" in lines
    texts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert sum(len(chunk["choices"][0]["delta"].get("content", "")) for chunk in texts) == 80
    assert "Traceback" not in stderr


def test_a_second_signal_forces() -> None:
    server = Process(drain_s=1000, num_pieces=80_000)
    thread, lines = server.stream_in_thread()
    server.process.send_signal(signal.SIGTERM)
    wait_until(server.is_closed_to_new_clients)  # two signals in one moment may arrive as one
    assert server.process.poll() is None, "still draining"
    server.process.send_signal(signal.SIGTERM)
    _, stderr = server.end()  # raises when it takes a minute; the drain would take longer
    assert "Exception in ASGI application" not in stderr
    thread.join(PATIENCE_S)
    assert "data: [DONE]" not in lines


@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_body_half_sent_at_the_end_leaves_no_traceback(num_signals: int) -> None:
    server = Process(drain_s=0.2 if num_signals == 1 else 1000, num_pieces=10)
    with server.connect() as client:
        data = http_request(CHAT, {"messages": user()}, expect="100-continue")
        client.sendall(data[:-5])
        assert client.recv(4096).startswith(b"HTTP/1.1 100"), "a route reads the body"
        server.process.send_signal(signal.SIGTERM)
        if num_signals == 2:
            wait_until(server.is_closed_to_new_clients)
            server.process.send_signal(signal.SIGTERM)
        code, stderr = server.end()
        assert client.recv(4096).startswith(b"HTTP/1.1 503")
    assert code == 0, stderr
    assert "Exception in ASGI application" not in stderr
    assert num_signals == 2 or "Traceback" not in stderr


def test_more_connections_than_files() -> None:
    server = Process(drain_s=1, num_pieces=10, num_files=128)
    crowd = [server.connect() for _ in range(300)]
    answers = [client.recv(4096) for client in crowd[64:]]  # in order of arrival
    assert {answer[:12] for answer in answers} <= {b"HTTP/1.1 503", b""}
    for client in crowd:
        client.close()
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as checker:
        wait_until(lambda: checker.get("/livez").status_code == 200)
        assert metric(checker, "taut_connections_refused_total") > 0
        assert metric(checker, "taut_accept_errors_total") == 0, "the files in reserve were enough"
    server.process.send_signal(signal.SIGTERM)
    code, stderr = server.end()
    assert code == 0
    assert len(stderr.splitlines()) <= 3, "one line for all that were refused"
