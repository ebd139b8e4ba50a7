"""The models that all systems run: Hugging Face folders, made on first use, and what quality is judged by."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taut import checkpoint, models
from taut.quality.texts import pydoc_text, pydoc_windows, sentences
from taut.testing import make, vocabularies
from taut.testing.shapes import REAL

MODELS = Path(__file__).parents[2] / ".models"
CALIBRATION_TEXTS, QUALITY_TEXTS = 16, 64


@dataclass(frozen=True)
class Model:
    """`cache` is where peers keep their converted files."""

    name: str
    folder: Path
    kind: str
    vocab_size: int
    context_len: int
    pooling: str

    @property
    def cache(self) -> Path:
        return MODELS / "peers" / self.name


def prepared(ref: str) -> Model:
    """A model by alias, by the name of a shape (random weights), or by its folder."""
    if ref in REAL:
        folder = MODELS / ref
        if not (folder / "model.safetensors").exists():
            make(ref, folder)
    else:
        folder = checkpoint.folder_of(ref) or _unpacked(ref)
    with checkpoint.open(str(folder)) as opened:
        built = models.build(opened)
        pooling = opened.pooling.mode if opened.pooling else "mean"
    return Model(Path(ref).name, folder, built.kind, built.vocab_size, built.context_len, pooling)


def _unpacked(ref: str) -> Path:
    """A GGUF's weights, dequantized, as a folder that every system reads."""
    folder = MODELS / f"{Path(ref).stem}-unpacked"
    if (folder / "model.safetensors").exists():
        return folder
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    with checkpoint.open(ref) as opened:
        tensors = {name: np.ascontiguousarray(opened.read(name), np.float32) for name in opened.tensors}
        config = {**opened.config, "torch_dtype": "float32"}
        (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    if not vocabularies.smollm2(folder):
        shutil.rmtree(folder)
        raise SystemExit(f"{ref} has no tokenizer that is known here; give a Hugging Face folder")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def gguf(folder: Path, cache: Path) -> Path:
    """The folder's unquantized GGUF, from which llama.cpp makes its own formats."""
    out = cache / "plain.gguf"
    if not out.exists():
        from to_gguf import convert

        cache.mkdir(parents=True, exist_ok=True)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        part = out.with_suffix(".part")
        convert(str(folder), part, "f32" if config.get("torch_dtype") == "float32" else "bf16")
        part.rename(out)
    return out


def quality_ids(model: Model, windows: int, window_len: int) -> list[list[int]]:
    """A decoder's windows or an encoder's sentences as token ids."""
    return [[int(i) for i in ids] for ids in _token_ids(model, windows, window_len, QUALITY_TEXTS)]


def calibration_ids(model: Model) -> list[list[int]]:
    """Other sentences than those that quality is judged by."""
    everything = _token_ids(model, 0, 0, QUALITY_TEXTS + CALIBRATION_TEXTS) if model.kind == "encoder" else []
    judged = {tuple(ids) for ids in quality_ids(model, 0, 0)} if model.kind == "encoder" else set()
    return [list(ids) for ids in everything if tuple(ids) not in judged][:CALIBRATION_TEXTS]


def _token_ids(model: Model, windows: int, window_len: int, texts: int) -> list[Any]:
    with checkpoint.open(str(model.folder)) as opened:
        assert opened.tokenizer is not None
        if model.kind == "decoder":
            return list(pydoc_windows(opened.tokenizer, windows, min(window_len, model.context_len))) if windows else []
        return [opened.tokenizer.encode(text)[: model.context_len] for text in sentences(texts)]


def uneven_texts(mean_words: int, count: int) -> list[str]:
    """`count` texts of half to one and a half times `mean_words` words."""
    rng = np.random.default_rng(mean_words)
    words = pydoc_text().split()
    lengths = rng.integers(mean_words // 2, mean_words * 3 // 2 + 1, count)
    if count == 1:
        lengths[:] = mean_words
    starts = rng.integers(0, len(words) - 2 * mean_words, count)
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]
