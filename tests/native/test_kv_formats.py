"""KV cache formats of a whole model: quality, memory, bits that depend on nothing but the request, and what is said of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from native.harness import isas
from taut.api import Model
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.errors import UsageError
from taut.quality import kl
from taut.testing import pydoc_windows, tiny

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]
FORMATS = ("fp32", "bf16", "int8", "k8v4")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("llama"), max_position_embeddings=256)


def load(folder: Path, kv: str | None = None, **options: Any) -> Model:
    return taut.load(str(folder), kv_precision=kv, memory_bytes=1 << 30, **options)


def prompt(model: Model, length: int) -> list[int]:
    return [7 * i % model.loaded.built.vocab_size for i in range(length)]


def by_token(model: Model, ids: list[int]) -> np.ndarray:
    """Logits of every position, decoded one by one beside a companion."""
    pool = model.loaded.scheduler.pool
    own, other = pool.take(blocks_for(len(ids))), pool.take(blocks_for(len(ids)))
    try:
        return np.concatenate([
            model.engine.logits(concatenate([Part([token], at, own), Part([(token + 1) % 9], at, other)]))[:1]
            for at, token in enumerate(ids)
        ])  # fmt: skip
    finally:
        pool.release(own)
        pool.release(other)


@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("kv", FORMATS)
def test_decode_and_prefill_have_the_same_bits(folder: Path, kv: str, precision: str) -> None:
    model = load(folder, kv, precision=precision)
    ids = prompt(model, 70)
    whole = model.logits(ids)
    kv_pool = model.engine.kv
    assert kv_pool is not None and kv_pool.layout.format == kv
    kv_pool.memory[: 8 * kv_pool.layout.block_bytes] = 0xFF  # what an earlier owner left is never seen
    assert by_token(model, ids).tobytes() == whole.tobytes()


@pytest.mark.parametrize("kv", FORMATS)
def test_the_reference_executor_keeps_the_same_numbers(folder: Path, kv: str) -> None:
    native, reference = load(folder, kv, precision="fp32"), load(folder, kv, precision="fp32", executor="reference")
    ids = prompt(native, 40)
    expected = reference.logits(ids)
    # A value on the edge between two steps may fall either way, and is off by one step then.
    bound = {"fp32": 2e-5, "bf16": 2e-3, "int8": 2e-3, "k8v4": 2e-2}[kv]
    assert np.abs(native.logits(ids) - expected).max() <= bound * np.abs(expected).max()


def test_formats_are_another_model_each(folder: Path) -> None:
    """The bits differ, and so does the key by which blocks are found again."""
    models = [load(folder, kv, precision="fp32") for kv in FORMATS]
    ids = prompt(models[0], 70)
    assert len({model.logits(ids).tobytes() for model in models}) == len(FORMATS)
    assert len({model.loaded.scheduler.pool._salt for model in models}) == len(FORMATS)
    assert len({model.plan.digest for model in models}) < len(FORMATS), "the plan alone does not tell them apart"


def test_what_is_said_and_what_it_takes(folder: Path) -> None:
    sizes = {}
    for kv in FORMATS:
        model = load(folder, kv, precision="fp32")
        assert model.describe()["kv_precision"] == kv
        assert (f"KV cache {kv}" in model.summary()) == (kv != "fp32")
        memory = model.describe()["memory"]
        sizes[kv] = memory["kv_bytes"] / memory["kv_tokens"]
    assert sizes["fp32"] == 2 * sizes["bf16"] > 2 * sizes["int8"] >= 2 * sizes["k8v4"], (
        "a group of this model's heads is half empty"
    )
    assert load(folder, precision="int8").describe()["kv_precision"] == "int8"
    assert load(folder, precision="bf16").describe()["kv_precision"] == "fp32"


def test_wrong_formats_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="kv_precision 'int4' is not one of fp32, bf16, int8, k8v4"):
        load(folder, "int4")
    with pytest.raises(UsageError, match="an encoder has no KV cache; leave it out"):
        load(tiny("bert", tmp_path), "int8")


@pytest.fixture(scope="module")
def smollm2() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Windows of text, and the logits of the packaged decoder in fp32 throughout."""
    model = taut.load("smollm2-135m", precision="fp32", max_context=256, memory_bytes=2 << 30)
    assert model.tokenizer is not None
    windows = pydoc_windows(model.tokenizer, 1, 192)
    return windows, [model.logits(ids.tolist()) for ids in windows]


@pytest.mark.parametrize(("kv", "most_kl"), [("bf16", 1e-4), ("int8", 1.2e-3), ("k8v4", 1e-2)])
def test_what_a_format_costs(smollm2: tuple[list[np.ndarray], list[np.ndarray]], kv: str, most_kl: float) -> None:
    """On one short window; over four of 512 int8 is 9.6e-4 and k8v4 6.3e-3 (bench/kv_quality.py)."""
    windows, expected = smollm2
    model = taut.load("smollm2-135m", precision="fp32", kv_precision=kv, max_context=256, memory_bytes=2 << 30)
    references = iter(expected)
    result = kl.measure(lambda ids: next(references), lambda ids: model.logits(ids.tolist()), windows)
    assert 0 < result.kl <= most_kl
