"""Whole checkpoint folders with random weights: real shapes for speed, tiny ones for comparing implementations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taut.testing import vocabularies
from taut.testing.shapes import REAL, TINY, tensors
from taut.testing.writer import Dtype, write

NAMES = (*REAL, *(f"tiny-{name}" for name in TINY))
_TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def make(name: str, folder: str | Path, *, seed: int = 0, dtype: Dtype | None = None) -> int:
    """Write the checkpoint `name` (one of NAMES) into `folder`; return the bytes of its weights."""
    if name in REAL:
        return _write(Path(folder), REAL[name], seed, dtype or "bf16", strong=False)
    return _write(Path(folder), TINY[name.removeprefix("tiny-")], seed, dtype or "fp32", strong=True)


def tiny(name: str, folder: str | Path, *, seed: int = 0, dtype: Dtype = "fp32", **overrides: Any) -> Path:
    """A tiny checkpoint of a family (llama, qwen3, bert, roberta). `overrides` change its config.json; None removes a key."""
    config = {key: value for key, value in (TINY[name] | overrides).items() if value is not None or key not in overrides}
    _write(Path(folder), config, seed, dtype, strong=True)
    return Path(folder)


def _write(folder: Path, config: dict[str, Any], seed: int, dtype: Dtype, *, strong: bool) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    config = config | {"torch_dtype": _TORCH_DTYPES[dtype]}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    family = config["model_type"]
    if family == "bert":
        vocabularies.word_piece(folder)
    elif family == "roberta":
        vocabularies.byte_level_bpe(folder, roberta=True)
    elif config["vocab_size"] < 49152 or not vocabularies.smollm2(folder):
        vocabularies.byte_level_bpe(folder)
    if strong and family in ("bert", "roberta"):
        _sentence_embedding(folder, config)
    return write(folder / "model.safetensors", tensors(config), seed=seed, dtype=dtype, strong=strong)


def _sentence_embedding(folder: Path, config: dict[str, Any]) -> None:
    """The files that sentence-transformers adds: mean pooling, then normalization."""
    stages = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(stages)
    ]
    (folder / "modules.json").write_text(json.dumps(modules, indent=1), encoding="utf-8")
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling = {
        "word_embedding_dimension": config["hidden_size"],
        "pooling_mode_mean_tokens": True,
        "pooling_mode_cls_token": False,
    }
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling, indent=1), encoding="utf-8")
    # RoBERTa's table has pad + 1 rows that no token uses.
    unused = config["pad_token_id"] + 1 if config["model_type"] == "roberta" else 0
    length = {"max_seq_length": config["max_position_embeddings"] - unused, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(length, indent=1), encoding="utf-8")
