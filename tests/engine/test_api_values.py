"""Wrong values from Python are refused with the name of what is wrong, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import taut
from taut.api import Model
from taut.errors import EngineStoppedError, RequestError, UsageError


@pytest.fixture(scope="module")
def model(tiny_models: dict[str, Path]) -> Model:
    return taut.load(str(tiny_models["llama"]), executor="reference", memory_bytes=1 << 30)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 7}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -3}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
    ],
)
def test_options(model: Model, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        model.generate("hello", **{"max_tokens": 2, **options})
    assert caught.value.param == param
    assert not model.loop.has_work


@pytest.mark.parametrize("prompt", [["a", "b"], 5, None, [1.5], [True]])
def test_prompts(model: Model, prompt: Any) -> None:
    with pytest.raises(RequestError, match="one text or a sequence of token ids"):
        model.generate(prompt, max_tokens=2)


@pytest.mark.parametrize(
    "messages", [[], "hello", [{"role": "user"}], [{"content": "x"}], ["x"], [{"role": 1, "content": "x"}]]
)
def test_messages(model: Model, messages: Any) -> None:
    with pytest.raises(RequestError):
        model.chat(messages, max_tokens=2)


def test_one_stop_string_is_one_stop(model: Model) -> None:
    free = model.generate("hello", max_tokens=12).text
    stop = free[2:4]
    assert model.generate("hello", max_tokens=12, stop=stop).text == free[: free.find(stop)]


def test_an_encoder_says_what_it_is(tiny_models: dict[str, Path]) -> None:
    encoder = taut.load(str(tiny_models["bert"]), executor="reference")
    for call in (lambda: encoder.chat([]), lambda: encoder.generate("x")):
        with pytest.raises(RequestError, match="is an encoder"):
            call()
    assert encoder.embed([""]).shape == (1, encoder.embedding_dim), "an empty text has its special tokens"
    for texts in ("one", [1]):
        with pytest.raises(RequestError, match="a list of texts"):
            encoder.embed(texts)  # type: ignore[arg-type]


def test_streams_side_by_side(model: Model) -> None:
    """Each gets its own text, whoever steps the loop, and held ones do not stop others."""
    alone = ["".join(model.generate(p, max_tokens=6, stream=True)) for p in ("hello", "world")]
    a, b = (model.generate(p, max_tokens=6, stream=True) for p in ("hello", "world"))
    pieces = ([next(a)], [next(b)])
    assert model.generate("hello", max_tokens=6).text == alone[0], "a call between them"
    pieces[0].extend(a)
    pieces[1].extend(b)
    assert ["".join(p) for p in pieces] == alone
    held = model.generate("hello", max_tokens=50, stream=True)
    next(held)
    held.close()
    model.generate("hello", max_tokens=1)
    assert not model.loop.has_work and model.loop.stats().kv_blocks_used == 0


def test_many_texts(tiny_models: dict[str, Path]) -> None:
    encoder = taut.load(str(tiny_models["bert"]), executor="reference")
    assert encoder.embed(["a"] * 1100).shape == (1100, encoder.embedding_dim)
    assert encoder.embed([]).shape == (0, encoder.embedding_dim)


def test_closed(tiny_models: dict[str, Path]) -> None:
    model = taut.load(str(tiny_models["llama"]), executor="reference", memory_bytes=1 << 30)
    stream = model.generate("hello", max_tokens=5, stream=True)
    next(stream)
    model.close()
    model.close()
    for use in (lambda: model.generate("hello"), lambda: model.logits([5]), lambda: next(stream)):
        with pytest.raises(EngineStoppedError, match="closed"):
            use()


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 1.5},
        {"threads": True},
        {"memory_bytes": 1.5e9},
        {"max_context": "9"},
        {"disable_passes": "quantize"},
        {"threads": 0},
    ],
)
def test_load_options(tiny_models: dict[str, Path], options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        taut.load(str(tiny_models["llama"]), **options)


def test_an_unknown_load_option(tiny_models: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"^load has no option cores, gpu; accepted: precision, threads, .*, progress$"):
        taut.load(str(tiny_models["llama"]), gpu=True, cores=2)
