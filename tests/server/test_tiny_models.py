"""The server over the real scheduler, engine and tokenizer: tiny random models on the reference executor."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import taut
from server.support import CHAT, COMPLETIONS, EMBEDDINGS, PATIENCE_S, Live, events_of, http_request, metric, wait_until
from taut.scheduler.request import Event
from taut.server.app import create_app
from taut.server.settings import Settings

SEEDED = {"temperature": 1.0, "max_tokens": 24}


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path]) -> Iterator[taut.Model]:
    model = taut.load(str(tiny_models["llama"]), executor="reference", precision="fp32")
    yield model
    model.close()


@pytest.fixture(scope="module")
def live(model: taut.Model) -> Iterator[Live]:
    settings = Settings(served_name="tiny")
    live = Live(create_app(model, settings), settings)
    live.start()
    yield live
    live.stop()
    model.loop.check_integrity()
    assert model.loop.stats().kv_blocks_used == 0


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=PATIENCE_S) as client:
        yield client


def complete(client: httpx.Client, **body: Any) -> Any:
    response = client.post(COMPLETIONS, json=SEEDED | body)
    assert response.status_code == 200, response.text
    return response.json()


def test_a_request_is_the_same_alone_and_in_company(client: httpx.Client, live: Live) -> None:
    alone = [complete(client, prompt=f"number {seed}", seed=seed)["choices"][0]["text"] for seed in range(8)]

    async def crowd() -> list[str]:
        async with httpx.AsyncClient(base_url=live.url, timeout=PATIENCE_S) as many:
            bodies = [SEEDED | {"prompt": f"number {seed}", "seed": seed} for seed in range(8)]
            responses = await asyncio.gather(*(many.post(COMPLETIONS, json=body) for body in bodies))
            return [response.json()["choices"][0]["text"] for response in responses]

    assert asyncio.run(crowd()) == alone
    assert len(set(alone)) > 1
    together = complete(client, prompt=[f"number {seed}" for seed in range(2)], seed=0)
    assert together["choices"][0]["text"] == alone[0]


def test_stream_and_whole_say_the_same(client: httpx.Client) -> None:
    for seed in range(6):
        body = SEEDED | {"messages": [{"role": "user", "content": "ž👋"}], "seed": seed, "max_tokens": 40}
        whole = client.post(CHAT, json=body).json()["choices"][0]
        *chunks, done = events_of(client.post(CHAT, json=body | {"stream": True}).text)
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole["message"]["content"]
        assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_stop_strings(client: httpx.Client) -> None:
    text = complete(client, prompt="abc", seed=3)["choices"][0]["text"]
    stop = text[5:8]  # crosses tokens more often than not
    assert stop
    cut = complete(client, prompt="abc", seed=3, stop=[stop])["choices"][0]
    assert cut["text"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    *chunks, _ = events_of(
        client.post(COMPLETIONS, json=SEEDED | {"prompt": "abc", "seed": 3, "stop": stop, "stream": True}).text
    )
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == cut["text"]


def test_the_second_turn_finds_the_first_cached(client: httpx.Client) -> None:
    prompt = "a long enough beginning to fill some blocks of the cache " * 2
    first = complete(client, prompt=prompt, seed=1)
    again = complete(client, prompt=prompt, seed=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert again["choices"][0]["text"] == first["choices"][0]["text"]


def test_usage_counts_tokens(client: httpx.Client, model: taut.Model) -> None:
    answer = complete(client, prompt=[1, 50, 60], max_tokens=5, ignore_eos=True)
    assert answer["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": None,
    }
    assert answer["choices"][0]["finish_reason"] == "length"


def test_generation_ends_with_the_context(client: httpx.Client, model: taut.Model) -> None:
    length = model.context_len - 4
    answer = complete(client, prompt=[50] * length, max_tokens=10**6, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 4
    assert answer["choices"][0]["finish_reason"] == "length"
    for too_long in (model.context_len, 10 * model.context_len):
        response = client.post(COMPLETIONS, json={"prompt": [50] * too_long})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_more_choices_than_the_queue_takes(client: httpx.Client) -> None:
    response = client.post(COMPLETIONS, json={"prompt": ["a"] * 256, "n": 8})
    assert response.status_code == 400
    assert "at most 1024" in response.json()["error"]["message"]
    many = complete(client, prompt=["a"] * 128, n=8, max_tokens=1)
    assert len(many["choices"]) == 1024


def test_a_client_that_leaves_gives_its_blocks_back(
    client: httpx.Client, live: Live, model: taut.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_to_leave = threading.Event()
    step, steps = model.loop.step, itertools.count()

    def held_step() -> list[Event]:
        """The first step runs; the second waits until the server knows that the client has left."""
        if next(steps):
            assert seen_to_leave.wait(PATIENCE_S)
        return step()

    monkeypatch.setattr(model.loop, "step", held_step)
    aborted = metric(client, "taut_requests_aborted_total")
    body = {"prompt": "go on", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with live.connect() as leaving:
        leaving.sendall(http_request(COMPLETIONS, body))
        leaving.recv(1000)
        wait_until(lambda: metric(client, "taut_kv_blocks_used") > 0)
    wait_until(lambda: metric(client, "taut_requests_aborted_total") == aborted + 1)
    seen_to_leave.set()
    wait_until(lambda: metric(client, "taut_requests_running") == 0)
    assert metric(client, "taut_kv_blocks_used") == 0
    assert next(steps) <= 3, "it was cut short: 200 tokens take 200 steps"


def test_embeddings(tiny_models: dict[str, Path]) -> None:
    model = taut.load(str(tiny_models["bert"]), executor="reference", precision="fp32")
    texts = ["a", "some longer text", "ž"]
    expected = model.embed(texts)
    settings = Settings()
    live = Live(create_app(model, settings), settings)
    live.start()
    try:
        data = httpx.post(live.url + EMBEDDINGS, json={"input": texts}, timeout=PATIENCE_S).json()["data"]
    finally:
        live.stop()
    np.testing.assert_array_equal(np.array([item["embedding"] for item in data], np.float32), expected)
