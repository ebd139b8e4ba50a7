"""Chat and plain completions, whole and streamed: shapes, usage, choices, errors in mid-stream."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from server.fakes import CACHED_TOKENS, FakeLoop, FakeModel, text_of
from server.support import CHAT, COMPLETIONS, client_of, events_of, is_openai_error, metric, user, wait_until
from taut.scheduler.request import GenerateRequest
from taut.server.settings import Limits, Settings

TEXT = "Hello, world"


@pytest.fixture
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture
def client(model: FakeModel) -> Any:
    with client_of(model) as client:
        yield client


def last_request(model: FakeModel) -> GenerateRequest:
    request = model.loop.seen[-1]
    assert isinstance(request, GenerateRequest)
    return request


def test_chat(client: TestClient) -> None:
    answer = client.post(CHAT, json={"model": "fake", "messages": user()}).json()
    prompt_tokens = len("user:hello;")
    assert answer["object"] == "chat.completion"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model"] == "fake"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": TEXT, "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": 4,
        "total_tokens": prompt_tokens + 4,
        "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
    }


def test_completion(client: TestClient) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": "Once"}).json()
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]


def test_length_and_limits(client: TestClient, model: FakeModel) -> None:
    answer = client.post(CHAT, json={"messages": user(), "max_tokens": 2}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["choices"][0]["message"]["content"] == "Hello"

    client.post(CHAT, json={"messages": user(), "max_tokens": 5, "max_completion_tokens": 1})
    assert last_request(model).max_tokens == 1, "the newer name wins"
    client.post(CHAT, json={"messages": user(), "max_tokens": 10**9})
    assert last_request(model).max_tokens == model.context_len - len("user:hello;"), "clipped to the context"
    client.post(COMPLETIONS, json={"prompt": "abc"})
    assert last_request(model).max_tokens == model.context_len - 3, "by default what fits"


def test_prompts_are_major_and_choices_minor(client: TestClient, model: FakeModel) -> None:
    answer = client.post(COMPLETIONS, json={"prompt": ["a", [98, 99]], "n": 2}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [(text_of(r), r.choice) for r in model.loop.seen if isinstance(r, GenerateRequest)] == [
        ("a", 0),
        ("a", 1),
        ("bc", 0),
        ("bc", 1),
    ]
    assert answer["usage"]["prompt_tokens"] == 3, "a prompt counts once, however many choices it has"
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * CACHED_TOKENS


def test_sampling_reaches_the_engine(client: TestClient, model: FakeModel) -> None:
    body = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": -1, "stop": "END", "ignore_eos": True}
    client.post(CHAT, json={"messages": user(), **body})
    request = last_request(model)
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 7)
    assert (request.sampling.min_p, request.sampling.seed) == (0.1, 2**63 - 1)
    assert (request.stop, request.ignore_eos) == (("END",), True)


def test_default_sampling_is_openais_unless_the_model_has_its_own() -> None:
    model = FakeModel(generation_config={"temperature": 0.6, "top_k": 20})
    with client_of(model) as client:
        client.post(CHAT, json={"messages": user()})
        assert (last_request(model).sampling.temperature, last_request(model).sampling.top_k) == (0.6, 20)
        client.post(CHAT, json={"messages": user(), "temperature": 0, "top_k": -1})
        assert (last_request(model).sampling.temperature, last_request(model).sampling.top_k) == (0.0, 0)
    model = FakeModel()
    with client_of(model) as client:
        client.post(CHAT, json={"messages": user(), "top_p": 0})
        assert last_request(model).sampling.temperature == 0.0, "a nucleus of mass 0 is greedy"
        client.post(CHAT, json={"messages": user()})
        assert last_request(model).sampling.temperature == 1.0


def test_messages_reach_the_template(client: TestClient, model: FakeModel) -> None:
    messages = [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "c"},
    ]
    client.post(CHAT, json={"messages": messages, "chat_template_kwargs": {"enable_thinking": False}})
    assert text_of(model.loop.seen[-1]) == "system:S;user:ab;assistant:;user:c;{'enable_thinking': False}"


def stream(client: TestClient, path: str, **body: Any) -> list[Any]:
    response = client.post(path, json={"stream": True, **body})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    return events_of(response.text)


def test_chat_stream(client: TestClient) -> None:
    *chunks, done = stream(client, CHAT, messages=user())
    assert done == "[DONE]"
    assert all(chunk["object"] == "chat.completion.chunk" and "usage" not in chunk for chunk in chunks)
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta["content"] for delta in deltas[1:-1]) == TEXT
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]


def test_completion_stream_of_several_choices(client: TestClient) -> None:
    *chunks, _ = stream(client, COMPLETIONS, prompt=["a", "b"], n=2)
    texts, reasons = [""] * 4, [None] * 4
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] = choice["finish_reason"]
    assert texts == [TEXT] * 4
    assert reasons == ["stop"] * 4


@pytest.mark.parametrize("options", [None, {}, {"include_usage": None}, {"include_usage": False}])
def test_no_usage_chunk_unless_asked(client: TestClient, options: Any) -> None:
    *chunks, _ = stream(client, CHAT, messages=user(), stream_options=options)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": user()}), (COMPLETIONS, {"prompt": "a"})])
def test_usage_chunk(client: TestClient, path: str, body: Any) -> None:
    *chunks, last, done = stream(client, path, stream_options={"include_usage": True}, **body)
    assert done == "[DONE]"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in chunks)
    assert last["choices"] == []
    whole = client.post(path, json=body).json()
    assert last["usage"] == whole["usage"]


def test_stream_and_whole_say_the_same() -> None:
    script = ("Žluť", "oučký ", "👩‍👩‍👧", "", "\n", "\u2028", '"', "end\x00")
    with client_of(FakeModel(FakeLoop(script=script))) as client:
        whole = client.post(CHAT, json={"messages": user()}).json()["choices"][0]["message"]["content"]
        *chunks, _ = stream(client, CHAT, messages=user())
        streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert whole == streamed == "".join(script)


@pytest.mark.parametrize(("prompt", "status", "code"), [("nan", 500, "numerical_error"), ("fail", 500, "internal_error")])
def test_a_request_that_fails(client: TestClient, prompt: str, status: int, code: str) -> None:
    response = client.post(CHAT, json={"messages": user(prompt)})
    assert response.status_code == status
    assert is_openai_error(response.json())
    assert response.json()["error"]["code"] == code
    assert "/some/path" not in response.text
    assert response.headers.get("x-should-retry") == ("false" if code == "numerical_error" else None)

    events = stream(client, CHAT, messages=user(prompt))
    assert events[-1]["error"]["code"] == code, "too late for a status: the error is the last event"
    assert "[DONE]" not in events
    assert events[1]["choices"][0]["delta"]["content"] == "Hel", "what came before it was sent"
    assert "/some/path" not in str(events)
    assert client.post(CHAT, json={"messages": user()}).json()["choices"][0]["message"]["content"] == TEXT


def test_one_failing_prompt_of_a_list_cancels_the_others() -> None:
    model = FakeModel(FakeLoop(step_s=0.002), context_len=90_000)
    with client_of(model) as client:
        assert client.post(COMPLETIONS, json={"prompt": ["go on", "nan", "go on"]}).status_code == 500
        assert client.post(COMPLETIONS, json={"prompt": "a"}).status_code == 200
    assert len(model.loop.cancelled) == 2
    assert not model.loop.has_work


def test_errors_before_the_first_byte_have_a_status(client: TestClient) -> None:
    for stream_on in (False, True):
        response = client.post(CHAT, json={"messages": user("overload"), "stream": stream_on})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "server_overloaded"
        assert 5 <= int(response.headers["retry-after"]) <= 9, "about the 7 s that the scheduler predicted"
        long = client.post(CHAT, json={"messages": user("x" * 256), "stream": stream_on})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("stream_on", [False, True])
def test_what_can_never_be_admitted_is_the_requests_fault(stream_on: bool) -> None:
    model = FakeModel(FakeLoop(max_queued=6, max_queued_tokens=50))
    with client_of(model) as client:

        def ask(*prompts: str, n: int) -> tuple[int, str]:
            response = client.post(COMPLETIONS, json={"prompt": list(prompts), "n": n, "stream": stream_on})
            return response.status_code, "" if response.status_code == 200 else response.json()["error"]["message"]

        status, message = ask(*"abcd", n=2)
        assert status == 400
        assert "8 sequences" in message
        assert "at most 6" in message
        assert not model.tokenizer.calls, "known before anything is tokenized"
        status, message = ask("x" * 26, n=2)
        assert status == 400
        assert "52 prompt tokens" in message
        assert "at most 50" in message
        assert not model.loop.seen
        assert ask(*"abc", n=2)[0] == ask("x" * 25, n=2)[0] == 200
        assert client.post(CHAT, json={"messages": user(), "n": 7}).status_code == 400
        assert client.get("/info").json()["limits"]["sequences"] == 6


def test_overload_of_one_prompt_takes_back_the_others(client: TestClient, model: FakeModel) -> None:
    assert client.post(COMPLETIONS, json={"prompt": ["a", "b", "overload"]}).status_code == 503
    assert sorted(request_id.split(":")[1] for request_id, _ in model.loop.cancelled) == ["0", "1"]
    assert not model.loop.has_work


def test_template_error_is_the_clients(client: TestClient) -> None:
    response = client.post(CHAT, json={"messages": user() + user()})
    assert response.status_code == 400
    assert "must alternate" in response.json()["error"]["message"]


def test_a_model_without_template_names_the_other_route() -> None:
    with client_of(FakeModel(chat_template=None)) as client:
        response = client.post(CHAT, json={"messages": user()})
        assert response.status_code == 400
        assert COMPLETIONS in response.json()["error"]["message"]


def test_tokenizing_happens_off_the_event_loop(client: TestClient, model: FakeModel) -> None:
    client.post(COMPLETIONS, json={"prompt": ["a", "b"]})
    assert model.tokenizer.calls == 2
    assert all("worker" in name.lower() for name in model.tokenizer.threads)


def test_too_long_texts_are_not_even_tokenized(client: TestClient, model: FakeModel) -> None:
    text = "x" * (model.context_len * Limits().chars_per_token + 1)
    for path, body in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": user(text)})):
        response = client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert model.tokenizer.calls == 0


@pytest.mark.parametrize(("length", "status"), [(255, 200), (256, 400), (257, 400), (2560, 400)])
def test_prompt_against_context(client: TestClient, model: FakeModel, length: int, status: int) -> None:
    response = client.post(COMPLETIONS, json={"prompt": [1] * length})
    assert response.status_code == status
    if status == 200:
        assert last_request(model).max_tokens == 1
    else:
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert not model.loop.seen, "refused before it reaches the engine"


def test_the_kv_cache_bounds_the_context_too() -> None:
    class Small(FakeModel):
        def describe(self) -> dict[str, Any]:
            return {**super().describe(), "memory": {"kv_tokens": 32}}

    model = Small()
    with client_of(model) as client:
        assert client.post(COMPLETIONS, json={"prompt": "x" * 32}).status_code == 400
        client.post(COMPLETIONS, json={"prompt": "x" * 30})
        assert last_request(model).max_tokens == 2


def test_only_the_engine_thread_touches_the_loop(client: TestClient, model: FakeModel) -> None:
    for _ in range(3):
        client.post(CHAT, json={"messages": user()})
    assert len(model.loop.owners) == 1


def test_metrics_add_up(client: TestClient) -> None:
    for _ in range(2):
        client.post(CHAT, json={"messages": user(), "surprise": 1, "user": "somebody"})
    client.post(CHAT, json={"messages": []})
    client.post(CHAT, json={"messages": user("nan")})
    client.post(CHAT, json={"messages": user("nan"), "stream": True})
    assert metric(client, "taut_requests_failed_total") == 2
    assert metric(client, "taut_generation_tokens_total") == 10
    assert metric(client, "taut_prompt_cached_tokens_total") == 4 * CACHED_TOKENS
    assert metric(client, "taut_prefix_cache_hits_total") == 4
    assert metric(client, "taut_time_to_first_token_seconds_count") == 4
    assert metric(client, "taut_time_per_output_token_seconds_count") == 2
    assert metric(client, "taut_requests_rejected_total") == 1
    assert metric(client, "taut_ignored_fields_total") == 2, "`user` is known, `surprise` is not"
    wait_until(lambda: metric(client, "taut_requests_running") == 0)  # told after the step that sent the last event
    text = client.get("/metrics").text
    assert 'taut_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 3.0' in text
    assert 'taut_requests_finished_total{reason="stop",route="/v1/chat/completions"} 2.0' in text


def test_n_is_bounded_by_the_operator() -> None:
    with client_of(settings=Settings(limits=Limits(max_n=2, max_texts=3))) as client:
        assert client.post(CHAT, json={"messages": user(), "n": 2}).status_code == 200
        assert client.post(CHAT, json={"messages": user(), "n": 3}).status_code == 400
        assert client.post(COMPLETIONS, json={"prompt": ["a"] * 3}).status_code == 200
        assert client.post(COMPLETIONS, json={"prompt": ["a"] * 4}).status_code == 400
