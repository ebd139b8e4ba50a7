"""Odd values and shapes, replayed from bug reports of other servers (named in the comments as owner/repo#number).

After each, the next ordinary request succeeds with unchanged output and nothing is left in the engine.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from server.fakes import FakeModel
from server.support import CHAT, COMPLETIONS, EMBEDDINGS, client_of, is_openai_error, user

MODEL = FakeModel()
ENCODER = FakeModel(kind="encoder")


@pytest.fixture(scope="module")
def decoder() -> Any:
    with client_of(MODEL) as client:
        yield client


@pytest.fixture(scope="module")
def encoder() -> Any:
    with client_of(ENCODER) as client:
        yield client


def check_next_request(client: TestClient, model: FakeModel) -> None:
    if model.kind == "decoder":
        answer = client.post(CHAT, json={"messages": user()}).json()
        assert answer["choices"][0]["message"]["content"] == "Hello, world"
    else:
        assert client.post(EMBEDDINGS, json={"input": "abc"}).json()["data"][0]["embedding"] == [3.0] * 4
    assert not model.loop.has_work


def refused(client: TestClient, path: str, body: Any, param: str | None, code: str = "invalid_value") -> str:
    response = client.post(path, json=body)
    assert response.status_code == 400, response.text
    assert is_openai_error(response.json())
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["code"], error["param"]) == (code, param)
    return str(error["message"])


# vllm-project/vllm#7632, #7283: an empty prompt killed the engine for everybody
@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []]])
def test_empty_prompts(decoder: TestClient, prompt: Any) -> None:
    message = refused(decoder, COMPLETIONS, {"prompt": prompt}, "prompt")
    assert "empty" in message
    if prompt == ["a", ""]:
        assert "prompt 1" in message, "which one of the list"
    check_next_request(decoder, MODEL)


def test_empty_messages(decoder: TestClient) -> None:
    refused(decoder, CHAT, {"messages": []}, "messages")
    refused(decoder, CHAT, {}, "messages", "missing_required_parameter")
    assert decoder.post(COMPLETIONS, json={"prompt": " "}).status_code == 200, "a space is a token"


def test_a_prompt_of_no_tokens(monkeypatch: pytest.MonkeyPatch, decoder: TestClient) -> None:
    monkeypatch.setattr(MODEL.tokenizer, "encode", lambda text, **_: [])
    refused(decoder, COMPLETIONS, {"prompt": "\u200b"}, "prompt")


# vllm-project/vllm#26797, PR#16529: token ids and biases outside the vocabulary
@pytest.mark.parametrize(
    "ids", [[-1], [0x110000], [2**63], [5279552648203111001], [1.0], [True], [None], ["a", 1], [[1], ["a"]]]
)
def test_bad_token_ids(decoder: TestClient, ids: Any) -> None:
    refused(decoder, COMPLETIONS, {"prompt": ids}, "prompt")
    check_next_request(decoder, MODEL)


# vllm-project/vllm#1623, PR#890: tiny temperatures; and what is no probability at all
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", value) for value in (-1, -0.01, 2.01, 1e30, "NaN", "1", True, [], {})),
        *(("top_p", value) for value in (-0.1, 1.0001, "0.5", False)),
        *(("min_p", value) for value in (-1, 1.5)),
        *(("top_k", value) for value in (-2, 1.5, 2**40, True)),
        *(("seed", value) for value in (2**63, -(2**63) - 1, 1.5, "7")),
        *(("max_tokens", value) for value in (0, -1, 1.5, "5", True)),
        *(("max_completion_tokens", value) for value in (0, -1)),
        *(("n", value) for value in (0, -1, 9, 129, 10**6, 1.0, "2")),
        *(("stop", value) for value in ("", [""], ["x"] * 17, "x" * 257, ["x"] * 10**5, [1], 5, {})),
        *(("stop_token_ids", value) for value in ([-1], [2**40], ["a"], [True])),
        *(("stream", value) for value in ("true", 1)),
        *(("ignore_eos", value) for value in (1, "yes")),
    ],
)  # fmt: skip
def test_values_out_of_range(decoder: TestClient, name: str, value: Any) -> None:
    message = refused(decoder, CHAT, {"messages": user(), name: value}, name)
    assert name in message
    assert len(message) < 1000
    refused(decoder, COMPLETIONS, {"prompt": "a", name: value}, name)


@pytest.mark.parametrize("temperature", [0, 1e-30, 1e-4, 2, 0.0])
def test_extreme_temperatures(decoder: TestClient, temperature: float) -> None:
    assert decoder.post(CHAT, json={"messages": user(), "temperature": temperature}).status_code == 200


# GHSA-3mwp-wvh9-7528 (vllm): n=10**6 blocked the event loop
def test_many_choices_cost_nothing(decoder: TestClient) -> None:
    before = len(MODEL.loop.seen)
    refused(decoder, CHAT, {"messages": user(), "n": 10**6}, "n")
    refused(decoder, COMPLETIONS, {"prompt": ["a"] * 10**5}, "prompt")
    assert len(MODEL.loop.seen) == before


# vllm-project/vllm#19862, ggml-org/llama.cpp#25515: null is the same as absent
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_nulls(decoder: TestClient, path: str) -> None:
    optional = (
        "model temperature top_p top_k min_p seed n max_tokens max_completion_tokens stop stop_token_ids ignore_eos stream "
        "stream_options logit_bias logprobs top_logprobs presence_penalty frequency_penalty response_format tools tool_choice user "
        "suffix echo best_of chat_template_kwargs metadata"
    )
    body = {"messages": user(), "prompt": "a"} | dict.fromkeys(optional.split())
    assert decoder.post(path, json=body).status_code == 200


# vllm-project/vllm#21089: an empty assistant turn is a turn
def test_empty_assistant_content(decoder: TestClient) -> None:
    for content in ("", None):
        messages = [*user("A"), {"role": "assistant", "content": content}, *user("B")]
        assert decoder.post(CHAT, json={"messages": messages}).status_code == 200


# vllm-project/vllm PR#36379
def test_stream_options_need_stream(decoder: TestClient) -> None:
    for options in ({}, {"include_usage": True}):
        refused(decoder, CHAT, {"messages": user(), "stream_options": options}, "stream_options")
    assert decoder.post(CHAT, json={"messages": user(), "stream_options": None}).status_code == 200
    refused(decoder, CHAT, {"messages": user(), "stream": True, "stream_options": {"include_usage": 1}}, "stream_options")


# vllm-project/vllm#6521, #10234, PR#16529, #19270, #17248: what is not supported is named, whatever its value
@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (CHAT, "tools", [{"type": "function"}]),
        (CHAT, "tools", "bogus"),
        (CHAT, "tool_choice", "required"),
        (CHAT, "functions", [{}]),
        (CHAT, "logprobs", True),
        (CHAT, "top_logprobs", 10**6),
        (CHAT, "logit_bias", {"-1": 1e9, "abc": "x"}),
        (CHAT, "presence_penalty", 0.1),
        (CHAT, "frequency_penalty", -2),
        (CHAT, "repetition_penalty", 1.1),
        (CHAT, "response_format", {"type": "json_object"}),
        (CHAT, "response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "bogus"}}}),
        (CHAT, "guided_regex", "foo**"),
        (CHAT, "structured_outputs", {"regex": "(a|aa)+$"}),
        (CHAT, "chat_template", "{{ 1 }}"),
        (CHAT, "chat_template_kwargs", {"messages": "x"}),
        (CHAT, "audio", {"voice": "x"}),
        (COMPLETIONS, "suffix", "end"),
        (COMPLETIONS, "echo", True),
        (COMPLETIONS, "logprobs", 0),
        (COMPLETIONS, "best_of", 2),
        (COMPLETIONS, "best_of", 10**6),
        (COMPLETIONS, "logit_bias", {"5": 1}),
        (COMPLETIONS, "prompt_embeds", "AAAA"),
    ],
)
def test_unsupported_parameters(decoder: TestClient, path: str, name: str, value: Any) -> None:
    body = {"messages": user(), "prompt": "a", name: value}
    assert name in refused(decoder, path, body, name, "unsupported_parameter")
    check_next_request(decoder, MODEL)


def test_values_that_ask_for_nothing_are_fine(decoder: TestClient) -> None:
    neutral: dict[str, Any] = {"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "logprobs": False}
    chat = {"tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "top_logprobs": 0}
    assert decoder.post(CHAT, json={"messages": user(), **neutral, **chat}).status_code == 200
    assert (
        decoder.post(COMPLETIONS, json={"prompt": "a", "echo": False, "suffix": "", "best_of": 1, **neutral}).status_code == 200
    )


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}, "unsupported_parameter"),
        ({"role": "tool", "content": "x"}, "unsupported_parameter"),
        ({"role": "assistant", "tool_calls": [{}]}, "unsupported_parameter"),
        ({"role": "user", "content": [{"type": "text"}]}, "invalid_value"),
        ({"role": "user", "content": ["x"]}, "invalid_value"),
        ({"role": "user", "content": 5}, "invalid_value"),
        ({"role": "user", "content": "\ud800"}, "invalid_value"),
        ({"role": "robot", "content": "x"}, "invalid_value"),
        ("hello", "invalid_value"),
    ],
)
def test_odd_messages(decoder: TestClient, message: Any, code: str) -> None:
    response = decoder.post(CHAT, content=json.dumps({"messages": [message]}), headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert is_openai_error(response.json())
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == ("messages", code)


def test_too_many_messages(decoder: TestClient) -> None:
    refused(decoder, CHAT, {"messages": user() * 1025}, "messages")


def test_all_problems_in_one_message(decoder: TestClient) -> None:
    message = refused(decoder, CHAT, {"messages": user(), "temperature": 9, "top_p": 2, "n": 0}, "temperature")
    assert "temperature" in message
    assert "top_p" in message
    assert "n should be" in message


# vllm-project/vllm#10583: a caller's id is a label; two live requests may share it
def test_request_id_is_only_a_label(decoder: TestClient) -> None:
    responses = [decoder.post(CHAT, json={"messages": user()}, headers={"x-request-id": "same"}) for _ in range(2)]
    assert [response.headers["x-request-id"] for response in responses] == ["same", "same"]
    assert responses[0].json()["id"] != responses[1].json()["id"]


@pytest.mark.parametrize("bad", ["a b", "x" * 129, "é", "", "a\tb"])
def test_odd_request_ids_are_replaced(decoder: TestClient, bad: str) -> None:
    response = decoder.get("/livez", headers={"x-request-id": bad.encode("latin-1")})
    assert response.headers["x-request-id"] != bad
    assert len(response.headers["x-request-id"]) == 32


# vllm-project/vllm#6174: the official client asks for base64; unknown formats are refused
def test_embeddings(encoder: TestClient) -> None:
    answer = encoder.post(EMBEDDINGS, json={"input": ["a", "bcd"], "dimensions": 4}).json()
    assert answer["object"] == "list"
    assert [item["embedding"] for item in answer["data"]] == [[1.0] * 4, [3.0] * 4]
    assert [(item["object"], item["index"]) for item in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    encoded = encoder.post(EMBEDDINGS, json={"input": "a", "encoding_format": "base64"}).json()["data"][0]["embedding"]
    assert encoded == "AACAPwAAgD8AAIA/AACAPw==", "little-endian float32"
    assert encoder.post(EMBEDDINGS, json={"input": [7, 8]}).json()["usage"]["prompt_tokens"] == 2
    assert len(encoder.post(EMBEDDINGS, json={"input": ["a"] * 256}).json()["data"]) == 256


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ""}, "input", "invalid_value"),
        ({"input": ["a", ""]}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": {"a": 1}}, "input", "invalid_value"),
        ({}, "input", "missing_required_parameter"),
        ({"input": ["a"] * 257}, "input", "invalid_value"),
        ({"input": "a", "encoding_format": "md5"}, "encoding_format", "invalid_value"),
        ({"input": "a", "dimensions": 2}, "dimensions", "unsupported_parameter"),
        ({"input": "a", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": ["a", "x" * 257]}, "input[1]", "context_length_exceeded"),
    ],
)
def test_odd_embeddings(encoder: TestClient, body: Any, param: str, code: str) -> None:
    refused(encoder, EMBEDDINGS, body, param, code)
    check_next_request(encoder, ENCODER)


# vllm-project/vllm#19661: a vector of NaN is an error that names the item
def test_a_vector_that_is_not_finite(encoder: TestClient) -> None:
    response = encoder.post(EMBEDDINGS, json={"input": ["a", "nan"]})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "numerical_error"
    assert "input 1" in response.json()["error"]["message"]
    check_next_request(encoder, ENCODER)


def test_the_wrong_kind_of_model(decoder: TestClient, encoder: TestClient) -> None:
    message = refused(decoder, EMBEDDINGS, {"input": "a"}, "model", "unsupported_operation")
    assert CHAT in message
    for path, body in ((CHAT, {"messages": user()}), (COMPLETIONS, {"prompt": "a"})):
        assert EMBEDDINGS in refused(encoder, path, body, "model", "unsupported_operation")


def test_models(decoder: TestClient) -> None:
    (card,) = decoder.get("/v1/models").json()["data"]
    assert (card["id"], card["object"]) == ("fake", "model")
    assert decoder.get("/v1/models/fake").json() == card
    for name in ("other", "a/b", "%00", "é"):
        response = decoder.get(f"/v1/models/{name}")
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
    response = decoder.post(CHAT, json={"model": "gpt-4", "messages": user()})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
