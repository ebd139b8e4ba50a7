"""The makers of test models: exact shapes, the same bytes every time, readable by others."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from taut.testing import NAMES, make, sentences, shapes, tiny
from taut.testing.__main__ import main

# Parameters of the public checkpoints (tied heads counted once, encoders without pooler).
PARAMETERS = {
    "smollm2-1.7b": 1_711_376_384,
    "smollm2-135m-shape": 134_515_008,
    "qwen3-1.7b": 1_720_574_976,
    "roberta-base": 124_055_040,
}


def digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("name", shapes.REAL)
def test_real_shapes_have_the_real_size(name: str) -> None:
    assert sum(math.prod(tensor.shape) for tensor in shapes.tensors(shapes.REAL[name])) == PARAMETERS[name]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("tiny-")])
def test_tiny_folders_are_whole_and_reproducible(name: str, tmp_path: Path) -> None:
    num_bytes = make(name, tmp_path / "a")
    make(name, tmp_path / "b")
    make(name, tmp_path / "c", seed=1)
    assert (tmp_path / "a" / "model.safetensors").stat().st_size == num_bytes
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    with safe_open(tmp_path / "a" / "model.safetensors", "numpy") as file:
        assert {key: tuple(file.get_slice(key).get_shape()) for key in sorted(file.keys())} == {
            tensor.name: tensor.shape for tensor in shapes.tensors(config)
        }
    tokenizer = json.loads((tmp_path / "a" / "tokenizer.json").read_text())
    assert len(tokenizer["model"]["vocab"]) < config["vocab_size"]


def test_bf16_rounds_fp32(tmp_path: Path) -> None:
    exact, rounded = tiny("llama", tmp_path / "a"), tiny("llama", tmp_path / "b", dtype="bf16")
    with (
        safe_open(exact / "model.safetensors", "numpy") as a,
        (rounded / "model.safetensors").open("rb") as b,
    ):
        header_len = int.from_bytes(b.read(8), "little")
        header = json.loads(b.read(header_len))
        assert header["model.norm.weight"]["dtype"] == "BF16"
        begin, end = header["model.norm.weight"]["data_offsets"]
        b.seek(8 + header_len + begin)
        got = (np.frombuffer(b.read(end - begin), np.uint16).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(got, a.get_tensor("model.norm.weight"), rtol=2**-8)


def test_overrides_reach_the_config(tmp_path: Path) -> None:
    folder = tiny("llama", tmp_path, attention_bias=True, tie_word_embeddings=False, rope_theta=None)
    config = json.loads((folder / "config.json").read_text())
    assert "rope_theta" not in config
    with safe_open(folder / "model.safetensors", "numpy") as file:
        assert {"lm_head.weight", "model.layers.0.self_attn.q_proj.bias"} <= set(file.keys())


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["make", "tiny-bert", str(tmp_path)]) == 0
    assert "tiny-bert" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["make", "gpt-5", str(tmp_path)])


def test_sentences_are_many_and_different() -> None:
    found = sentences(200)
    assert len(set(found)) == 200
    assert found == sentences(200)
