"""What a loaded model says of itself is what it can do: its usable context, and the precision that it computes in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import taut
from taut.api import Model
from taut.engine.budget import PROCESS_BYTES
from taut.errors import ContextLengthError, MemoryBudgetError, UsageError
from taut.testing import tiny

PLENTY = 1 << 30


def load(folder: Path, **options: Any) -> Model:
    return taut.load(str(folder), executor="reference", **{"memory_bytes": PLENTY, **options})


def tight(folder: Path, **options: Any) -> Model:
    """The model with a KV cache of two blocks more than the least, which is one sequence of 256 tokens."""
    memory = load(folder, **options).describe()["memory"]
    block_bytes = memory["kv_bytes"] // (memory["kv_tokens"] // 32)
    used = PROCESS_BYTES + memory["weight_bytes"] + memory["activation_bytes"]
    return load(folder, memory_bytes=used + 10 * block_bytes, **options)


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("long"), max_position_embeddings=1024)


def test_the_context_is_what_the_cache_holds(long_llama: Path) -> None:
    model = tight(long_llama)
    described = model.describe()
    assert (model.context_len, described["context_len"], described["max_context_len"]) == (320, 320, 1024)
    assert "1 sequence of 320 tokens (the model takes 1,024; a larger --memory gives more)" in model.summary()
    assert model.generate([5] * 319).usage.completion_tokens == 1
    with pytest.raises(ContextLengthError, match="the prompt has 320 tokens; at most 319 and an answer fit"):
        model.generate([5] * 320)


def test_the_context_that_was_asked_for(long_llama: Path) -> None:
    model = load(long_llama, max_context=512)
    assert model.context_len == 512
    assert "16 sequences of 512 tokens (the model takes 1,024; a larger --max-context gives more)" in model.summary()
    full = load(long_llama, max_context=1024)
    assert "16 sequences of 1,024 tokens · " in full.summary()
    with pytest.raises(UsageError, match=r"--max-context\) is 1,025, but .* takes at most 1,024 tokens; give at most that"):
        load(long_llama, max_context=1025)


def test_more_memory_than_there_is(long_llama: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="give --memory at most that"):
        load(long_llama, memory_bytes=1 << 50)


@pytest.mark.parametrize(
    ("options", "precision", "shown"),
    [
        ({}, "int8", " · int8 · "),
        ({"precision": "fp32"}, "fp32", " · fp32 · "),
        ({"disable_passes": ["quantize"]}, "fp32", " · fp32 (the quantize pass is disabled), KV cache int8 · "),
    ],
)
def test_the_precision_that_is_used(long_llama: Path, options: dict[str, Any], precision: str, shown: str) -> None:
    model = load(long_llama, **options)
    assert model.describe()["precision"] == model.plan.precision == precision
    assert shown in model.summary()


def test_every_group_that_is_there_is_named(tmp_path: Path) -> None:
    """A group of 128 divides the inputs of the down projection alone."""
    folder = tiny(
        "llama", tmp_path / "model", hidden_size=192, num_attention_heads=6, num_key_value_heads=2, intermediate_size=256
    )
    model = load(folder, precision="int4-g128")
    groups = {step.attrs["group"] for step in model.plan.steps if step.op == "linear_q4"}
    assert groups == {64, 128}
    assert model.describe()["precision"] == model.plan.precision == "int4-g64 + int4-g128"
    assert " · int4-g64 + int4-g128, KV cache int8 · " in model.summary()
    assert load(folder, precision="int4-g64").plan.precision == "int4-g64"


@pytest.fixture(scope="module")
def short_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bert with more rows of positions than sentence-transformers lets a text have."""
    folder = tiny("bert", tmp_path_factory.mktemp("short"))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 16}))
    return folder


def test_sentence_transformers_limit_is_kept(short_texts: Path) -> None:
    model = load(short_texts)
    assert model.context_len == model.describe()["max_context_len"] == 16
    assert "texts of up to 16 tokens · " in model.summary()
    text = "a " * 40
    with pytest.raises(
        ContextLengthError, match=r"has 42 tokens; .* takes at most 16; shorten or split it, .*truncate"
    ) as caught:
        model.embed(["a", text])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    assert model.embed([text], truncate=True).tolist() == model.embed(["a " * 14]).tolist(), "cut, with its end token"
    with pytest.raises(UsageError, match="takes at most 16 tokens"):
        load(short_texts, max_context=17)
    assert load(short_texts, max_context=8).context_len == 8


def test_a_limit_beyond_the_positions_does_not_count(tmp_path: Path) -> None:
    folder = tiny("bert", tmp_path)
    limit = load(folder).context_len
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 100_000}))
    assert load(folder).context_len == limit


@pytest.mark.parametrize(("name", "alike"), [("llama", "0–2"), ("qwen3", "0–2"), ("bert", "0–1"), ("roberta", "0–1")])
def test_equal_layers_are_explained_once(tiny_models: dict[str, Path], name: str, alike: str) -> None:
    model = load(tiny_models[name])
    folded, whole = model.explain().splitlines(), model.explain(every_layer=True).splitlines()
    assert len(folded) < len(whole)
    (head,) = (line for line in folded if line.lstrip().startswith("layers "))
    assert head.startswith(f"  layers {alike}, ")
    steps = [line for line in whole if line.lstrip()[:1].isdigit()]
    assert [int(line.split()[0]) for line in steps] == list(range(len(model.plan.steps)))
    block = [line.partition("·")[2].split() for line in folded if line.startswith("     · ")]
    first = int(head.rpartition("(")[2].partition("–")[0])
    for layer in (0, 1):
        shown = [line.split()[1:] for line in steps[first + layer * len(block) :][: len(block)]]
        spelled = [[word.replace("i+1", str(layer + 1)).replace("layers.i", f"layers.{layer}").replace("layer=i", f"layer={layer}")
                    for word in line] for line in block]  # fmt: skip
        assert spelled == shown
