"""The official client's ordinary calls, over a real socket."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from server.fakes import FakeLoop, FakeModel
from server.support import PATIENCE_S, live_server, user, wait_until
from taut.server.settings import Settings, digest_key

TEXT = "Hello, world"


def connect(url: str, key: str = "unused") -> openai.OpenAI:
    return openai.OpenAI(base_url=url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with live_server() as live, connect(live.url) as client:
        yield client


@pytest.fixture(scope="module")
def encoder() -> Iterator[openai.OpenAI]:
    with live_server(FakeModel(kind="encoder")) as live, connect(live.url) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["fake"]
    assert client.models.retrieve("fake").owned_by == "taut"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="fake", messages=user(), n=2, seed=7, temperature=0.5)  # type: ignore[arg-type]
    assert [choice.message.content for choice in answer.choices] == [TEXT, TEXT]
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="fake",
        messages=user(),  # type: ignore[arg-type]
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 4


def test_chat_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="fake", messages=user()) as stream:  # type: ignore[arg-type]
        assert "".join(event.delta for event in stream if event.type == "content.delta") == TEXT
        assert stream.get_final_completion().choices[0].message.content == TEXT


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="fake", prompt=["a", "b"], max_tokens=2)
    assert [(choice.text, choice.finish_reason) for choice in answer.choices] == [("Hello", "length")] * 2
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(model="fake", prompt="a", stream=True)) == TEXT


def test_embeddings(encoder: openai.OpenAI) -> None:
    answer = encoder.embeddings.create(model="fake", input=["a", "bcd"])  # the client asks for base64 and decodes it
    assert [item.embedding for item in answer.data] == [[1.0] * 4, [3.0] * 4]
    floats = encoder.embeddings.create(model="fake", input="bcd", encoding_format="float")
    assert floats.data[0].embedding == [3.0] * 4
    assert floats.usage.total_tokens == 3


def test_errors_become_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=user("x" * 300))  # type: ignore[arg-type]
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="fake", messages=user(), n=10**6)  # type: ignore[arg-type]
    assert caught.value.param == "n"
    with pytest.raises(openai.InternalServerError) as overloaded:
        client.chat.completions.create(model="fake", messages=user("overload"))  # type: ignore[arg-type]
    assert overloaded.value.status_code == 503
    with pytest.raises(openai.APIError, match="not finite"):  # in mid-stream
        list(client.chat.completions.create(model="fake", messages=user("nan"), stream=True))  # type: ignore[arg-type]
    assert client.chat.completions.create(model="fake", messages=user()).choices[0].message.content == TEXT  # type: ignore[arg-type]


def test_keys() -> None:
    settings = Settings(key_digests=(digest_key("secret"),))
    with live_server(settings=settings) as live:
        with connect(live.url, "secret") as client:
            assert len(list(client.models.list())) == 1
        with connect(live.url, "wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"


def test_a_client_that_closes_its_stream() -> None:
    model = FakeModel(FakeLoop(script=("x",) * 100_000, step_s=0.002), context_len=90_000)
    with live_server(model) as live, connect(live.url) as client:
        with client.chat.completions.create(model="fake", messages=user(), stream=True) as stream:  # type: ignore[arg-type]
            next(iter(stream))
        answer = client.chat.completions.create(model="fake", messages=user(), max_tokens=3)  # type: ignore[arg-type]
        assert answer.choices[0].message.content == "xxx"
        wait_until(lambda: not model.loop.has_work)  # the server sees that the stream was closed
        assert len(model.loop.cancelled) == 1
