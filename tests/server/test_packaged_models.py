"""`taut serve` as a user runs it: the two packaged models, the native executor, the official client."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import numpy as np
import openai
import pytest

from server.support import PATIENCE_S, metric, wait_until
from taut.kernels import native

pytestmark = [
    pytest.mark.native,
    pytest.mark.slow,
    pytest.mark.skipif(not native.is_built(), reason="the native module is not built"),
]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]


@contextmanager
def serving(model: str, max_context: int) -> Iterator[openai.OpenAI]:
    code = "from taut.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", model, "--port", "0", "--max-context", str(max_context), "--memory", "2GiB"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        summary, address = process.stdout.readline(), process.stdout.readline()
        assert "weights" in summary
        url = address.split(" at ")[1].split(" ")[0]
        with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client:
            yield client
    finally:
        process.send_signal(signal.SIGTERM)
        _, code = process.communicate(timeout=PATIENCE_S), process.returncode
    assert code == 0


@pytest.fixture(scope="module")
def chat() -> Iterator[openai.OpenAI]:
    with serving("smollm2-135m", 512) as client:
        yield client


def ask(client: openai.OpenAI, text: str, seed: int) -> str:
    answer = client.chat.completions.create(
        model="smollm2-135m", messages=[{"role": "user", "content": text}], max_tokens=24, temperature=0.8, seed=seed
    )
    return answer.choices[0].message.content or ""


def test_it_knows_the_capital_of_france(chat: openai.OpenAI) -> None:
    answer = chat.chat.completions.create(model="smollm2-135m", messages=QUESTION, temperature=0, max_tokens=16)  # type: ignore[arg-type]
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == "stop"
    stream = chat.chat.completions.create(model="smollm2-135m", messages=QUESTION, temperature=0, max_tokens=16, stream=True)  # type: ignore[arg-type]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == answer.choices[0].message.content


def test_seeded_answers_do_not_depend_on_company(chat: openai.OpenAI) -> None:
    texts = [f"Tell me something about the number {number}." for number in range(8)]
    alone = [ask(chat, text, seed) for seed, text in enumerate(texts)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda pair: ask(chat, pair[1], pair[0]), enumerate(texts)))
    assert together == alone


def test_a_second_turn_reuses_the_first(chat: openai.OpenAI) -> None:
    long = [{"role": "user", "content": "Repeat after me: " + "one two three four five " * 20}]
    first = chat.chat.completions.create(model="smollm2-135m", messages=long, temperature=0, max_tokens=8)  # type: ignore[arg-type]
    again = chat.chat.completions.create(model="smollm2-135m", messages=long, temperature=0, max_tokens=8)  # type: ignore[arg-type]
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0
    assert again.choices[0].message.content == first.choices[0].message.content


def test_a_client_that_leaves_and_one_that_asks_too_much(chat: openai.OpenAI) -> None:
    with chat.chat.completions.create(
        model="smollm2-135m",
        messages=[{"role": "user", "content": "Count to a thousand."}],
        max_tokens=400,
        stream=True,
    ) as stream:
        next(iter(stream))
    with pytest.raises(openai.BadRequestError, match="tokens"):
        ask(chat, "word " * 600, 0)
    base = str(chat.base_url).removesuffix("/v1/")
    assert ask(chat, "Say hello.", 1)
    with httpx.Client(base_url=base, timeout=PATIENCE_S) as checker:
        wait_until(lambda: metric(checker, "taut_kv_blocks_used") == metric(checker, "taut_requests_running") == 0)


def test_embeddings() -> None:
    with serving("minilm", 256) as client:
        texts = ["A cat sleeps on the windowsill.", "The kitten naps in the sun.", "Quarterly revenue grew."]
        data = client.embeddings.create(model="minilm", input=texts).data
        vectors = np.array([item.embedding for item in data], np.float32)  # (texts, 384)
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
        assert vectors[0] @ vectors[1] > 0.4 > vectors[0] @ vectors[2]
        with pytest.raises(openai.BadRequestError, match="at most 256") as caught:
            client.embeddings.create(model="minilm", input="word " * 300)
        assert caught.value.code == "context_length_exceeded", (
            "sentence-transformers reads 256 tokens, though there are 512 positions"
        )
