"""--attention: what a plan holds, what the policies have in common, and what `explain` says."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.api import Model
from taut.config import ATTENTIONS
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.errors import UsageError
from taut.kernels.attention import POLICIES
from taut.testing import tiny

LENGTH = 100


def load(folder: Path, attention: str, **options: Any) -> Model:
    return taut.load(str(folder), memory_bytes=1 << 30, attention=attention, **options)


def test_every_policy_has_its_entry() -> None:
    assert tuple(POLICIES) == ATTENTIONS
    assert all(policy.softmax_keys % 32 == 0 for policy in POLICIES.values())


@pytest.mark.native
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_policies_differ_in_rounding_alone(tmp_path: Path, precision: str) -> None:
    folder = tiny("llama", tmp_path, max_position_embeddings=256)
    models = {attention: load(folder, attention, precision=precision) for attention in ATTENTIONS}
    ids = [7 * i % models["auto"].loaded.built.vocab_size for i in range(LENGTH)]
    logits = {attention: model.logits(ids) for attention, model in models.items()}
    plain = logits["plain"]
    assert logits["auto"].tobytes() == plain.tobytes(), f"{LENGTH} keys are fewer than a chunk"
    assert logits["flash"][:32].tobytes() == plain[:32].tobytes()
    assert logits["flash"].tobytes() != plain.tobytes()
    assert np.abs(logits["flash"] - plain).max() <= (0.05 if precision == "int8" else 1e-4) * np.abs(plain).max()


@pytest.mark.native
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_policy_does_not_see_chunks(tmp_path: Path, attention: str) -> None:
    model = load(tiny("llama", tmp_path, max_position_embeddings=256), attention)
    ids = [3 * i % model.loaded.built.vocab_size for i in range(LENGTH)]
    blocks = model.loaded.scheduler.pool.take(blocks_for(LENGTH))
    rows = []
    for begin, end in itertools.pairwise((0, 1, 30, 35, 64, 99, LENGTH)):
        part = Part(ids[begin:end], begin, blocks, wants_row=False, all_rows=True)
        rows.append(model.engine.logits(concatenate([part])))
    assert np.concatenate(rows).tobytes() == model.logits(ids).tobytes()


@pytest.mark.native
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_explain_says_why(tmp_path: Path, family: str) -> None:
    folder = tiny(family, tmp_path)
    for attention in ATTENTIONS:
        text = load(folder, attention).explain()
        assert f"attention {attention}: {POLICIES[attention].reason}" in text
        assert f"softmax_keys={POLICIES[attention].softmax_keys}" in text
    assert "whatever is asked" in load(folder, "flash", executor="reference").explain()


def test_another_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="attention 'fast' is not one of auto, flash, plain"):
        load(tmp_path, "fast")
