"""The tokenizer of a Hugging Face folder as GGUF's metadata: byte-level BPE whose way of splitting llama.cpp knows by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from taut.checkpoint.gguf_tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT
from taut.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
_SPLITS = {LLAMA3_SPLIT: "llama-bpe", QWEN2_SPLIT: "qwen2"}


def metadata(folder: Path, config: dict[str, Any], num_rows: int) -> dict[str, Any]:
    """GGUF keys → str, int, bool, or a list of str or int. `num_rows`: of the embedding; ids without a token are filled up."""
    tokenizer = _json(folder / "tokenizer.json")
    settings = _json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    model = tokenizer.get("model") or {}
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise UnsupportedModelError(
            f"{folder / 'tokenizer.json'}: only byte-level BPE can be written to GGUF; export from the model's GGUF file, "
            "or convert the tokenizer with llama.cpp"
        )
    tokens, types = [f"[PAD{index}]" for index in range(num_rows)], [UNUSED] * num_rows
    for token, index in model["vocab"].items():
        tokens[index], types[index] = token, NORMAL
    for added in tokenizer.get("added_tokens", []):
        tokens[added["id"]], types[added["id"]] = added["content"], CONTROL if added.get("special") else USER_DEFINED
    found = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _splitting(tokenizer, folder),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.add_bos_token": _adds_bos(tokenizer, settings),
        "tokenizer.ggml.add_space_prefix": False,
    }
    for key, name in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        given = config.get(name)
        given = given[0] if isinstance(given, list) and given else given
        if isinstance(given, int):
            found[f"tokenizer.ggml.{key}_token_id"] = given
    if template := _template(folder, settings):
        found["tokenizer.chat_template"] = template
    return found


def _splitting(tokenizer: dict[str, Any], folder: Path) -> str:
    """llama.cpp's name of the pre-tokenizer."""
    given = tokenizer.get("pre_tokenizer") or {}
    parts = given.get("pretokenizers", [given])
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"] and parts[0].get("use_regex", True):
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and parts[0].get("individual_digits") and parts[1].get("use_regex", True):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and (name := _SPLITS.get(str((parts[0].get("pattern") or {}).get("Regex")))):
        return name
    raise UnsupportedModelError(
        f"{folder / 'tokenizer.json'}: its pre-tokenizer ({', '.join(map(str, kinds))}) is none of gpt-2, smollm, llama-bpe and qwen2, and a guess "
        "would split text wrongly; export from the model's GGUF file, or convert the tokenizer with llama.cpp"
    )


def _adds_bos(tokenizer: dict[str, Any], settings: dict[str, Any]) -> bool:
    if isinstance(settings.get("add_bos_token"), bool):
        return bool(settings["add_bos_token"])
    given = tokenizer.get("post_processor") or {}
    steps = given.get("processors", [given])
    return any((step.get("single") or [{}])[0].get("SpecialToken") is not None for step in steps)


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    if (path := folder / "chat_template.jinja").exists():
        return path.read_text(encoding="utf-8")
    given = settings.get("chat_template")
    return given if isinstance(given, str) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} is missing; a GGUF file needs the tokenizer") from None
    except ValueError as error:
        raise ModelFormatError(f"is not JSON ({error})", file=str(path)) from None
    if not isinstance(found, dict):
        raise ModelFormatError("is not a JSON object", file=str(path))
    return found
