"""How an embedding model makes one vector of many: read from the files that sentence-transformers writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from taut.checkpoint import strict_json
from taut.checkpoint.files import is_plain_name, safe_path
from taut.errors import ModelFormatError, UnsupportedModelError

PoolingMode = Literal["mean", "cls", "last", "max"]
_FLAGS: dict[str, PoolingMode] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
_NEW_NAMES: dict[str, PoolingMode] = {"mean": "mean", "cls": "cls", "lasttoken": "last", "last": "last", "max": "max"}
MAX_MODULES = 16


@dataclass(frozen=True)
class Pooling:
    """`normalize`: the vector is scaled to length 1. `max_length`: tokens of a text that count, None when the files do
    not say.
    """

    mode: PoolingMode
    normalize: bool
    max_length: int | None


def load(folder: Path) -> Pooling | None:
    """From modules.json; None when the folder has none. UnsupportedModelError for modules other than Transformer,
    Pooling, Normalize.
    """
    if not (folder / "modules.json").exists():
        return None
    modules = strict_json.load(safe_path(folder, "modules.json"), max_bytes=1 << 20)
    if not isinstance(modules, list) or len(modules) > MAX_MODULES or not all(isinstance(module, dict) for module in modules):
        raise ModelFormatError(f"must be a list of at most {MAX_MODULES} modules", file="modules.json")
    mode: PoolingMode | None = None
    normalize = False
    for module in modules:
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        if kind == "Pooling":
            mode = _read_mode(folder, module.get("path"))
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise UnsupportedModelError(f"modules.json: module {kind[:40]!r}; accepted are Transformer, Pooling and Normalize")
    return Pooling(mode, normalize, _read_max_length(folder)) if mode else None


def _read_mode(folder: Path, path: Any) -> PoolingMode:
    if not is_plain_name(path):
        raise ModelFormatError(
            f"is {str(path)[:60]!r}; the name of a folder in the model is expected", file="modules.json", field="path"
        )
    name = f"{path}/config.json"
    config = strict_json.load_object(safe_path(folder, name), name=name, max_bytes=1 << 20)
    new = config.get("pooling_mode")
    if new is not None:
        if not isinstance(new, str) or new not in _NEW_NAMES:
            raise UnsupportedModelError(f"{name}: pooling mode {str(new)[:40]!r}; accepted are mean, cls, lasttoken and max")
        return _NEW_NAMES[new]
    chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(chosen) != 1 or chosen[0] not in _FLAGS:
        raise UnsupportedModelError(
            f"{name}: pooling {' + '.join(chosen) or 'not stated'}; one of {', '.join(_FLAGS)} is accepted"
        )
    return _FLAGS[chosen[0]]


def _read_max_length(folder: Path) -> int | None:
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json"):
        if (folder / name).exists():
            value = strict_json.load_object(safe_path(folder, name), max_bytes=1 << 20).get("max_seq_length")
            if value is None:
                return None
            if type(value) is not int or not 1 <= value <= 1 << 24:
                raise ModelFormatError(
                    f"is {str(value)[:40]!r}; a positive whole number is expected", file=name, field="max_seq_length"
                )
            return value
    return None
