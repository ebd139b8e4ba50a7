"""Bodies of megabytes: read as small ones are, off the event loop, and without keeping the interpreter for themselves."""

from __future__ import annotations

import json
import re
import threading
import time
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.fakes import FakeModel
from server.support import CHAT, COMPLETIONS, client_of, live_server, user
from taut.server import large_json, openai
from taut.server.body import INLINE_BYTES, parse_object
from taut.server.large_json import MAX_CONTAINERS, MAX_KEYS, PIECE_CHARS, LargeDecoder

JSON = {"content-type": "application/json"}
SHORT_PIECE = re.compile(r'[^\[\]{}"]{1,7},')
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def outcome(decoder: json.JSONDecoder, text: str) -> Any:
    try:
        return repr(decoder.decode(text))
    except json.JSONDecodeError:
        return json.JSONDecodeError


@pytest.fixture
def short_pieces() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_json, "_PIECE", SHORT_PIECE)
        yield


@pytest.mark.usefixtures("short_pieces")
class TestLargeDecoder:
    @given(VALUES, st.sampled_from([None, 1]))
    def test_reads_what_json_writes(self, value: Any, indent: int | None) -> None:
        text = json.dumps(value, indent=indent)
        assert outcome(LargeDecoder(), text) == outcome(json.JSONDecoder(), text)

    @given(st.text('[]{}",:01e-. tnul\\', max_size=30))
    def test_refuses_what_json_refuses(self, text: str) -> None:
        for whole in (text, f"[{text}]", f"[1,2,{text}]", f'{{"a":[{text}]}}'):
            assert outcome(LargeDecoder(), whole) == outcome(json.JSONDecoder(), whole)

    @pytest.mark.parametrize(
        "text", ["[1,]", "[,1]", "[,]", "[ ,1]", "[1,,2]", "[1 2,3]", "[1,2", "[1,2,3,4,5,6,7,8,x]", "[01,2]"]
    )
    def test_says_where_json_says_it(self, text: str) -> None:
        with pytest.raises(json.JSONDecodeError) as ours:
            LargeDecoder().decode(text)
        with pytest.raises(json.JSONDecodeError) as theirs:
            json.loads(text)
        assert abs(ours.value.pos - theirs.value.pos) <= 1

    def test_hooks_reach_every_number(self) -> None:
        decoder = LargeDecoder(parse_float=lambda text: f"float {text}", parse_constant=lambda name: f"constant {name}")
        assert decoder.decode("[1.5,2,NaN,[2.5]]") == ["float 1.5", 2, "constant NaN", ["float 2.5"]]


def test_the_interpreter_is_free_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    decode = json.JSONDecoder.decode

    def seen(self: json.JSONDecoder, text: str) -> Any:
        sizes.append(len(text))
        return decode(self, text)

    text = json.dumps({"prompt": list(range(10**6))})
    decoder = LargeDecoder()
    monkeypatch.setattr(decoder._pieces, "decode", seen.__get__(decoder._pieces))
    assert decoder.decode(text) == {"prompt": list(range(10**6))}
    assert len(sizes) >= len(text) // (PIECE_CHARS + 1)
    assert max(sizes) <= PIECE_CHARS + 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"a":[' + ",".join(["[]"] * MAX_CONTAINERS) + "]}", f"more than {MAX_CONTAINERS}"),
        ('{"a":[' + ",".join(["{}"] * MAX_CONTAINERS) + "]}", f"more than {MAX_CONTAINERS}"),
        ("{" + ",".join(f'"{n}":1' for n in range(MAX_KEYS + 1)) + "}", f"at most {MAX_KEYS}"),
        ('{"a":' + "[" * INLINE_BYTES + "]" * INLINE_BYTES + "}", "nested deeper"),
        ('{"a":[' + "1," * INLINE_BYTES + "]}", "Expecting value"),
        ('{"a":[' + "1," * INLINE_BYTES + "NaN]}", "NaN is not a JSON number"),
        ('{"a":[' + "1," * INLINE_BYTES + "1e999]}", "a number is too large"),
        ('{"a":[' + "1," * INLINE_BYTES + "1" * 5000 + "]}", "an integer has thousands of digits"),
        ('{"a":[' + "1," * INLINE_BYTES + "1]", "delimiter"),
        ("[" + "1," * INLINE_BYTES + "1]", "an object is needed"),
        ('{"a":' + "1" * 5000 + "}", "an integer has thousands of digits"),
        ('{"a":-' + "1" * 5000 + "}", "an integer has thousands of digits"),
        ('{"a":' + "1" * 10**6 + "}", "an integer has thousands of digits"),
    ],
    ids=range(13),
)
def test_unsound_bodies(body: str, said: str) -> None:
    with client_of() as client:
        response = client.post(CHAT, content=body, headers=JSON)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")
        message = response.json()["error"]["message"]
        assert said in message
        assert "sys." not in message
        assert client.post(CHAT, json={"messages": user()}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": [1] * 2_000_000}),
        (COMPLETIONS, {"prompt": "x" * 7_000_000}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 200_000}]}),
        (CHAT, {"messages": [{"role": "user", "content": "\n" * 3_000_000}]}),
    ],
    ids=["tokens", "text", "parts", "escapes"],
)
def test_large_prompts_do_not_fit(path: str, body: Any) -> None:
    model = FakeModel()
    with client_of(model) as client:
        response = client.post(path, json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert not model.tokenizer.calls


def test_a_large_value_in_the_wrong_place_is_shown_in_short() -> None:
    with client_of() as client:
        for value in ([1] * 10**6, "x" * 10**6, {"a": ["y" * 10**6]}):
            response = client.post(CHAT, json={"messages": user(), "temperature": value})
            assert response.status_code == 400
            assert len(response.json()["error"]["message"]) < 200
            assert "..." in response.json()["error"]["message"], "not all of it was written out"


def test_only_large_bodies_leave_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def seen(data: bytes, *, max_depth: int) -> Any:
        threads.append(threading.current_thread().name)
        return parse_object(data, max_depth=max_depth)

    monkeypatch.setattr(openai, "parse_object", seen)
    with client_of() as client:
        for padding in ("", "x" * INLINE_BYTES):
            assert client.post(CHAT, json={"messages": user(), "metadata": {"padding": padding}}).status_code == 200
    small, large = threads
    assert small != large
    assert "worker" in large.lower()


@pytest.mark.parametrize(
    "body",
    [
        '{"prompt":[' + "1," * 3_900_000 + "1]}",
        '{"prompt":[' + '"a",' * 1_900_000 + '"a"]}',
        '{"prompt":[' + "1.5," * 1_900_000 + "1]}",
        '{"prompt":[' + '{"a":[1]},' * 120_000 + "1]}",
    ],
    ids=["integers", "strings", "floats", "objects"],
)
def test_health_answers_while_a_large_body_is_read(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spans: list[tuple[float, float]] = []
    answered: list[float] = []

    def timed(data: bytes, *, max_depth: int) -> Any:
        began = time.monotonic()
        try:
            return parse_object(data, max_depth=max_depth)
        finally:
            spans.append((began, time.monotonic()))

    monkeypatch.setattr(openai, "parse_object", timed)
    with live_server() as live, live.client() as checker:
        ended = threading.Event()

        def post() -> None:
            try:
                assert httpx.post(live.url + COMPLETIONS, content=body, headers=JSON, timeout=None).status_code == 400
            finally:
                ended.set()

        thread = threading.Thread(target=post)
        thread.start()
        while not ended.is_set():
            assert checker.get("/health").status_code == 200
            answered.append(time.monotonic())
        thread.join()
    ((began, end),) = spans
    assert sum(began < at < end for at in answered) >= 5
