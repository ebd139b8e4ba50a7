"""Every family and head on tiny random configurations, fp32, both executors, against transformers."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from parity import oracle
from taut.engine.batch import Part, concatenate
from taut.testing import difference, tiny

pytestmark = pytest.mark.parity
BOUND = 1e-4  # max|Δ| / max|ref|: fp32 over a few hundred accumulations and three layers, with an order of magnitude to spare
LENGTHS = (1, 7, 32, 75)  # within a KV block, exactly one, and across two

DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama grouped heads": ("llama", {}),
    "llama equal heads": ("llama", {"num_key_value_heads": 6}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama wide heads": ("llama", {"head_dim": 32}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama attention bias": ("llama", {"attention_bias": True}),
    "llama mlp bias": ("llama", {"mlp_bias": True}),
    "llama rope_parameters": ("llama", {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}),
    "llama rope_scaling linear": ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}}),
    "llama odd sizes": (
        "llama",
        {"hidden_size": 72, "intermediate_size": 100, "num_attention_heads": 9, "num_key_value_heads": 3},
    ),
    "llama bf16 file": ("llama", {"dtype": "bf16"}),
    "qwen3": ("qwen3", {}),
    "qwen3 equal heads": ("qwen3", {"num_key_value_heads": 4}),
    "qwen3 untied attention bias": ("qwen3", {"tie_word_embeddings": False, "attention_bias": True}),
    "qwen3 rope_parameters": (
        "qwen3",
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
    ),
}
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", {}),
    "bert gelu_new": ("bert", {"hidden_act": "gelu_new"}),
    "bert relu": ("bert", {"hidden_act": "relu"}),
    "bert odd sizes": ("bert", {"hidden_size": 60, "intermediate_size": 100, "num_attention_heads": 5}),
    "bert bf16 file": ("bert", {"dtype": "bf16"}),
    "roberta": ("roberta", {}),
    "roberta other pad": ("roberta", {"pad_token_id": 4, "max_position_embeddings": 69}),
    "roberta two types": ("roberta", {"type_vocab_size": 2}),
}
EXECUTORS = ("reference", pytest.param("native", marks=pytest.mark.native))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @lru_cache
    def made(case: str) -> Path:
        family, overrides = (DECODERS | ENCODERS)[case]
        return tiny(family, tmp_path_factory.mktemp("tiny"), seed=3, **overrides)

    return made


def sequences(vocab_size: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, vocab_size, length).tolist() for length in lengths]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", DECODERS)
def test_decoder_logits(case: str, executor: str, folder: Any) -> None:
    path = folder(case)
    expected = oracle.decoder(path)
    model = taut.load(str(path), precision="fp32", executor=executor)
    for ids in sequences(expected.config.vocab_size, LENGTHS):
        assert difference(oracle.logits(expected, ids), model.logits(ids)).relative <= BOUND, f"{len(ids)} tokens"


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("case", ENCODERS)
def test_encoder_hidden_states_and_embeddings(case: str, executor: str, folder: Any) -> None:
    path = folder(case)
    expected = oracle.encoder(path)
    model = taut.load(str(path), precision="fp32", executor=executor)
    pad = expected.config.pad_token_id
    ids = sequences(expected.config.vocab_size, (1, 7, 33, 64))
    ids = [[token if token != pad else pad + 1 for token in one] for one in ids]  # a pad id has no position in RoBERTa
    states, vectors = model.engine.executor.run(concatenate([Part(one) for one in ids]))  # one ragged batch
    wanted = [oracle.hidden(expected, one) for one in ids]
    assert difference(np.concatenate(wanted), states).relative <= BOUND
    means = np.stack([one.astype(np.float64).mean(axis=0) for one in wanted])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    assert difference(means.astype(np.float32), vectors).relative <= BOUND


def test_the_bound_bites(folder: Any, tmp_path: Path) -> None:
    """A rope base that is 1 % off must not pass."""
    expected = oracle.decoder(folder("llama grouped heads"))
    slightly_off = tiny("llama", tmp_path, seed=3, rope_parameters=None, rope_theta=10100.0)
    wrong = taut.load(str(slightly_off), precision="fp32", executor="reference")
    (ids,) = sequences(expected.config.vocab_size, (75,))
    assert difference(oracle.logits(expected, ids), wrong.logits(ids)).relative > 10 * BOUND
