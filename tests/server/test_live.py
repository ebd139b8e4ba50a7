"""Over real sockets: clients that leave, do not read, come in crowds or speak no HTTP; drain and death."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.fakes import FakeLoop, FakeModel
from server.support import (
    CHAT,
    COMPLETIONS,
    PATIENCE_S,
    Live,
    events_of,
    http_request,
    live_server,
    metric,
    user,
    wait_until,
)
from taut.errors import PortInUseError, UsageError
from taut.server.answer import ClientGoneError, StreamAnswer
from taut.server.run import address_of, bind
from taut.server.settings import Limits, Settings, Timing

TEXT = "Hello, world"
ENDLESS = ("x",) * 100_000


def endless(**options: Any) -> FakeModel:
    return FakeModel(FakeLoop(script=ENDLESS, step_s=0.005, **options), context_len=90_000)


def answer(live: Live) -> str:
    body = httpx.post(live.url + CHAT, json={"messages": user(), "max_tokens": 4}, timeout=PATIENCE_S).json()
    return str(body["choices"][0]["message"]["content"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_leaves_frees_its_place_within_a_step(stream: bool, reset: bool) -> None:
    model = endless()
    with live_server(model) as live:
        client = live.connect()
        client.sendall(http_request(CHAT, {"messages": user(), "stream": stream}))
        if stream:
            assert b"200 OK" in client.recv(100)
        wait_until(lambda: bool(model.loop.running))
        if reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        client.close()
        wait_until(lambda: bool(model.loop.cancelled))
        wait_until(lambda: not model.loop.has_work)
        with live.client() as checker:
            wait_until(lambda: metric(checker, "taut_requests_aborted_total") == 1)
            assert metric(checker, "taut_requests_open") == 0
            wait_until(lambda: metric(checker, "taut_kv_blocks_used") == 0)
            wait_until(lambda: 'status="499"' in checker.get("/metrics").text)
        assert answer(live) == "xxxx"


def test_a_client_that_leaves_the_queue() -> None:
    model = endless(slots=1)
    with live_server(model) as live:
        first, second = live.connect(), live.connect()
        first.sendall(http_request(CHAT, {"messages": user("first"), "stream": True}))
        wait_until(lambda: len(model.loop.running) == 1)
        second.sendall(http_request(CHAT, {"messages": user("second")}))
        wait_until(lambda: len(model.loop.waiting) == 1)
        second.close()
        wait_until(lambda: not model.loop.waiting)
        assert len(model.loop.running) == 1, "the other one goes on"
        first.close()
        wait_until(lambda: not model.loop.has_work)


def test_streams_and_departures_in_turn() -> None:
    model = endless()
    with live_server(model) as live:
        for number in range(30):
            if number % 3:
                assert answer(live) == "xxxx"
            else:
                with live.connect() as client:
                    client.sendall(http_request(CHAT, {"messages": user(), "stream": True}))
                    client.recv(100)
        wait_until(lambda: not model.loop.has_work)
        assert len(model.loop.cancelled) == 10


def test_two_hundred_at_once() -> None:
    model = FakeModel(FakeLoop(slots=16))

    async def ask(client: httpx.AsyncClient, number: int) -> str:
        text = user(f"hello {number}")
        if number % 2:
            body = (await client.post(CHAT, json={"messages": text})).json()
            return str(body["choices"][0]["message"]["content"])
        body = (await client.post(CHAT, json={"messages": text, "stream": True})).text
        chunks = [chunk for chunk in events_of(body) if chunk != "[DONE]"]
        return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)

    async def crowd(url: str) -> list[str]:
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(200)))

    with live_server(model) as live:
        assert asyncio.run(crowd(live.url)) == [TEXT] * 200
        assert len(model.loop.seen) == 200
        assert not model.loop.has_work
        with live.client() as checker:
            assert metric(checker, "taut_requests_finished_total") == 200
            assert metric(checker, "taut_requests_open") == 0


def test_a_crowd_beyond_the_limit_is_refused_cheaply() -> None:
    model = FakeModel(FakeLoop(slots=1))
    with live_server(model, Settings(max_open_requests=5)) as live:

        async def crowd() -> list[httpx.Response]:
            limits = httpx.Limits(max_connections=60)
            async with httpx.AsyncClient(base_url=live.url, timeout=PATIENCE_S, limits=limits) as client:
                tasks = [asyncio.ensure_future(client.post(CHAT, json={"messages": user("hang")})) for _ in range(60)]
                await asyncio.to_thread(wait_until, lambda: sum(task.done() for task in tasks) == 55)
                model.loop.release.set()
                return await asyncio.gather(*tasks)

        responses = asyncio.run(crowd())
        assert sorted(response.status_code for response in responses) == [200] * 5 + [503] * 55
        assert model.tokenizer.calls == 5, "what is refused is not tokenized"
        refused = next(response for response in responses if response.status_code == 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "server_overloaded"


def test_health_answers_while_a_step_hangs() -> None:
    model = FakeModel()
    with live_server(model) as live, live.client() as checker, live.connect() as client:
        client.sendall(http_request(CHAT, {"messages": user("hang")}))
        wait_until(lambda: bool(model.loop.running))
        assert checker.get("/readyz").status_code == 200, "busy is ready"
        live.app.state.services.settings = Settings(timing=Timing(stall_s=0.1))
        wait_until(lambda: checker.get("/livez").status_code == 503)
        assert checker.get("/livez").json()["reasons"] == ["engine_stalled"]
        model.loop.release.set()
        wait_until(lambda: checker.get("/livez").status_code == 200)
        assert answer(live) == TEXT


def test_engine_death() -> None:
    with live_server(endless()) as live, live.connect() as stream:
        stream.sendall(http_request(CHAT, {"messages": user(), "stream": True}))
        stream.recv(100)
        whole = httpx.post(live.url + CHAT, json={"messages": user("die")}, timeout=PATIENCE_S)
        assert whole.status_code == 503
        assert whole.json()["error"]["code"] == "engine_stopped"
        received = read_all(stream)
        assert b'"code":"engine_stopped"' in received
        assert b"[DONE]" not in received
        for path in ("/livez", "/readyz", "/health"):
            response = httpx.get(live.url + path, timeout=PATIENCE_S)
            assert (response.status_code, response.json()["reasons"]) == (503, ["engine_stopped"])
        again = httpx.post(live.url + CHAT, json={"messages": user()}, timeout=PATIENCE_S)
        assert (again.status_code, again.json()["error"]["code"]) == (503, "engine_stopped")
        assert "secret" not in whole.text + received.decode() + again.text


def read_all(client: socket.socket) -> bytes:
    """Until the end of the chunked body, or of the connection."""
    received = b""
    while not received.endswith(b"0\r\n\r\n") and (data := client.recv(65536)):
        received += data
    return received


def test_pings_while_nothing_happens() -> None:
    model = FakeModel()
    with live_server(model, Settings(timing=Timing(ping_s=0.02))) as live, live.connect() as client:
        client.sendall(http_request(CHAT, {"messages": user("hang"), "stream": True}))
        received = b""
        while received.count(b": ping\n\n") < 3:
            received += client.recv(4096)
        model.loop.release.set()
        assert b"[DONE]" in read_all(client)


def test_a_reader_that_does_not_read_is_dropped() -> None:
    model = FakeModel(FakeLoop(script=("y" * 20_000,) * 10_000, step_s=0.001), context_len=20_000)
    with (
        live_server(model, Settings(timing=Timing(write_s=0.3, drain_s=1))) as live,
        live.connect(receive_bytes=4096) as client,
    ):
        client.sendall(http_request(CHAT, {"messages": user(), "stream": True}))
        with live.client() as checker:
            wait_until(lambda: metric(checker, "taut_requests_aborted_total") == 1)
            assert metric(checker, "taut_requests_open") == 0
        wait_until(lambda: len(live.server.server_state.connections) == 0)  # the kernel drops it too, with what is buffered


def test_a_send_that_blocks_is_a_client_gone() -> None:
    async def never(message: Any) -> None:
        await asyncio.Event().wait()

    class Services:
        settings = Settings(timing=Timing(write_s=0.05))

    stream = object.__new__(StreamAnswer)
    stream._services = Services()  # type: ignore[assignment]
    with pytest.raises(ClientGoneError):
        asyncio.run(stream._send(never, b"data"))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000,
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ],
    ids=range(5),
)
def test_what_is_not_http(raw: bytes) -> None:
    with live_server() as live:
        with live.connect() as client:
            client.sendall(raw)
            assert client.recv(4096).split(b"\r\n")[0].startswith(b"HTTP/1.1 4")
        assert answer(live) == TEXT


def test_silent_and_half_open_connections() -> None:
    with live_server(settings=Settings(timing=Timing(header_s=1.0))) as live:
        with live.connect() as silent, live.connect() as half:
            half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
            assert half.recv(100) == silent.recv(100) == b""
        assert answer(live) == TEXT
    with live_server(settings=Settings(limits=Limits(body_timeout_s=0.2))) as live:
        with live.connect() as slow:
            slow.sendall(http_request(CHAT, {"messages": user()})[:-5])
            assert slow.recv(4096).startswith(b"HTTP/1.1 408")
        assert answer(live) == TEXT


def test_a_body_over_the_limit_is_answered_on_the_wire() -> None:
    with live_server(settings=Settings(limits=Limits(body_bytes=1000))) as live, live.connect() as client:
        client.sendall(http_request(CHAT, {"messages": user("x" * 5000)}))
        assert client.recv(4096).startswith(b"HTTP/1.1 413")


def test_pipelined_requests_are_all_answered() -> None:
    with live_server() as live, live.connect() as client:
        client.sendall(http_request(COMPLETIONS, {"prompt": "a"}) * 3)
        received = b""
        while received.count(b'"finish_reason":"stop"') < 3:
            data = client.recv(65536)
            assert data
            received += data
        assert received.count(b"HTTP/1.1 200") == 3


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


BAD_CHUNK = b"host: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        ([b"GET /livez HTTP/1.1\r\n" + BAD_CHUNK], [b"400"]),
        ([b"GET /livez HTTP/1.1\r\n" + BAD_CHUNK[:-4], BAD_CHUNK[-4:]], [b"200"]),
        ([b"POST /v1/chat/completions HTTP/1.1\r\n" + BAD_CHUNK], [b"400"]),
        ([b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"\x00\r\n\r\n"], [b"200", b"400"]),
    ],
    ids=range(4),
)
def test_what_turns_out_to_be_no_http_is_no_error_of_ours(
    sent: list[bytes], answers: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with live_server() as live:
        with live.connect() as client:
            received = b""
            for number, part in enumerate(sent, 1):
                client.sendall(part)
                while number < len(sent) and b'{"status":"ok"}' not in received:
                    received += client.recv(4096)
            while data := client.recv(4096):
                received += data
        assert re.findall(rb"HTTP/1\.1 (\d+)", received) == answers
        assert answer(live) == TEXT
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]


SMUGGLED = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (b"1.1", b"content-length: 5\r\ntransfer-encoding: chunked"),
        (b"1.1", b"Transfer-Encoding: Chunked\r\nContent-Length: 5"),
        (b"1.1", b"content-length: 5\r\ncontent-length: 6"),
        (b"1.1", b"transfer-encoding: chunked\r\ntransfer-encoding: chunked"),
        (b"1.1", b"transfer-encoding: gzip, chunked"),
        (b"1.1", b"content-length: 5, 6"),
        (b"1.1", b"content-length : 5"),
        (b"1.0", b"transfer-encoding: chunked"),
    ],
    ids=range(8),
)
def test_a_body_whose_end_is_unclear_ends_the_connection(version: bytes, fields: bytes) -> None:
    head = b"POST /v1/chat/completions HTTP/" + version + b"\r\nhost: x\r\ncontent-type: application/json\r\n"
    with live_server() as live, live.connect() as client:
        client.sendall(head + fields + b"\r\n\r\n0\r\n\r\n" + SMUGGLED)
        received = b""
        while data := client.recv(4096):
            received += data
        assert received.startswith(b"HTTP/1.1 400")
        assert received.count(b"HTTP/1.1 ") == 1, "what follows is not looked at"
        assert b"connection: close" in received.lower()
        assert b'"code":"invalid_http"' in received
