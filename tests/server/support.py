"""How the server's tests reach it: in process through Starlette's client, or over real sockets on uvicorn."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.testclient import TestClient

from server.fakes import FakeLoop, FakeModel
from taut.server.app import create_app
from taut.server.run import Server, bind
from taut.server.settings import Settings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
PATIENCE_S = 60.0  # no test measures speed: what comes at all may come late on a busy machine


def user(text: str = "hello") -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@contextmanager
def client_of(model: FakeModel | None = None, settings: Settings | None = None) -> Iterator[TestClient]:
    with TestClient(create_app(model or FakeModel(), settings), raise_server_exceptions=False) as client:
        yield client


class Live:
    """A server on a real socket, in a thread of this process."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        self.app = app
        self.listener = bind("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = Server(app, settings)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]})

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.server.started)

    def stop(self) -> None:
        self.server.handle_exit(15, None)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def connect(self, *, receive_bytes: int | None = None) -> socket.socket:
        client = socket.socket()
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", self.port))
        return client

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S)


@contextmanager
def live_server(model: FakeModel | None = None, settings: Settings | None = None) -> Iterator[Live]:
    settings = settings or Settings()
    live = Live(create_app(model or FakeModel(), settings), settings)
    live.start()
    try:
        yield live
    finally:
        live.stop()


def http_request(path: str, body: dict[str, Any], **headers: str) -> bytes:
    data = json.dumps(body).encode()
    fields = {"host": "x", "content-type": "application/json", "content-length": str(len(data)), **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


def wait_until(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the awaited state was not reached"
        time.sleep(0.002)


def events_of(text: str) -> list[Any]:
    """The `data:` payloads of an SSE body, "[DONE]" as that string."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    payloads = [block.removeprefix("data: ") for block in blocks]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]


def metric(client: Any, name: str) -> float:
    """The sum of a metric's samples over its labels."""
    lines = client.get("/metrics").text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


def is_openai_error(body: Any) -> bool:
    error = body.get("error") if isinstance(body, dict) else None
    return isinstance(error, dict) and set(error) == {"message", "type", "param", "code"} and bool(error["message"])


ENDLESS = ("x",) * 100_000


def endless(**options: Any) -> FakeModel:
    return FakeModel(FakeLoop(script=ENDLESS, step_s=0.005, **options), context_len=90_000)


def answer(live: Live) -> str:
    body = httpx.post(live.url + CHAT, json={"messages": user(), "max_tokens": 4}, timeout=PATIENCE_S).json()
    return str(body["choices"][0]["message"]["content"])


def read_all(client: socket.socket) -> bytes:
    """Until the end of the chunked body, or of the connection."""
    received = b""
    while not received.endswith(b"0\r\n\r\n") and (data := client.recv(65536)):
        received += data
    return received
