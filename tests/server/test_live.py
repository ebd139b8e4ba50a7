"""Clients over real sockets: those that leave, do not read or come in crowds; and an engine that hangs or dies."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpx
import pytest

from server.fakes import FakeLoop, FakeModel
from server.support import (
    CHAT,
    PATIENCE_S,
    answer,
    endless,
    events_of,
    http_request,
    live_server,
    metric,
    read_all,
    user,
    wait_until,
)
from taut.server.answer import ClientGoneError, StreamAnswer
from taut.server.settings import Settings, Timing

TEXT = "Hello, world"


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
