"""What an artefact has beside its weights: config.json, the tokenizer and whatever else the model's text needs, as Hugging Face lays it out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from taut.checkpoint import Checkpoint
from taut.checkpoint.files import safe_path
from taut.checkpoint.quantized import CONFIG_KEY, Quantization

COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
    "tokenizer.model", "chat_template.jinja", "generation_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json", "LICENSE", "LICENSE.txt", "NOTICE",
)  # fmt: skip


def write_config(folder: Path, checkpoint: Checkpoint, quantization: Quantization) -> None:
    """config.json: the model's own, and what it is quantized to."""
    stated = {**checkpoint.config, CONFIG_KEY: quantization.to_json()}
    (folder / "config.json").write_text(json.dumps(stated, indent=1, sort_keys=True) + "\n", "utf-8")


def write_text_files(folder: Path, checkpoint: Checkpoint) -> None:
    """Copies what a folder has; what is inside a GGUF file is written out."""
    if checkpoint.folder is None:
        _write_tokenizer(folder, checkpoint)
        return
    for name in COPIED:
        if (checkpoint.folder / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(safe_path(checkpoint.folder, name), folder / name)


def _write_tokenizer(folder: Path, checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer
    if tokenizer is None:
        return
    (folder / "tokenizer.json").write_text(tokenizer.to_json(), "utf-8")
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for kind in ("bos", "eos", "pad"):
        token_id = checkpoint.config.get(f"{kind}_token_id")
        if isinstance(token_id, int) and (text := tokenizer.token_text(token_id)):
            settings[f"{kind}_token"] = text
    if checkpoint.chat_template is not None:
        settings["chat_template"] = checkpoint.chat_template.source
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n", "utf-8")
    ends = sorted(tokenizer.eos_ids)
    if ends:
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}) + "\n", "utf-8")
