"""Bytes over real sockets that are no HTTP, half of it, or more than one request of it."""

from __future__ import annotations

import logging
import re

import pytest

from server.support import (
    CHAT,
    COMPLETIONS,
    answer,
    http_request,
    live_server,
    user,
)
from taut.server.settings import Limits, Settings, Timing

TEXT = "Hello, world"


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
