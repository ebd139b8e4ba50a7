"""The reference executor: passes change nothing, chunks and neighbours change nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import taut
from taut.engine.batch import Part, concatenate
from taut.passes import PIPELINE

PROMPT = [5, 17, 200, 42, 9, 8, 7, 101, 33, 250] * 4


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4-g32"])
def test_each_pass_keeps_the_numbers(tiny_models: dict[str, Path], family: str, precision: str) -> None:
    def logits(*disabled: str) -> np.ndarray:
        options = {"precision": precision, "executor": "reference", "disable_passes": disabled, "memory_bytes": 1 << 30}
        return taut.load(str(tiny_models[family]), **options).logits(PROMPT)

    fused = logits()
    names = [name for name, _ in PIPELINE if name != "quantize"]
    for name in names:
        np.testing.assert_array_equal(logits(name), fused, err_msg=name)
    np.testing.assert_array_equal(logits(*names), fused)


@pytest.mark.parametrize("precision", ["fp32", "int8", "int4-g32"])
def test_chunks_and_neighbours(tiny_models: dict[str, Path], precision: str) -> None:
    model = taut.load(str(tiny_models["llama"]), precision=precision, executor="reference", memory_bytes=1 << 30)
    whole = model.logits(PROMPT)
    cut, blocks, others = 33, [3, 4], [6]
    model.engine.logits(concatenate([Part(PROMPT[:cut], 0, blocks), Part([4, 4], 0, others)]))
    tail = model.engine.logits(concatenate([Part([7], 2, others), Part(PROMPT[cut:], cut, blocks, all_rows=True)]))
    np.testing.assert_array_equal(tail[1:], whole[cut:])
