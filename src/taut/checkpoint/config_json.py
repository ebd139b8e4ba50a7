"""config.json checked: every number that sizes something is in range before anything uses it. All problems are reported
together.

The dictionary keeps the file's own keys; `auto_map` (code to download) is dropped. `rope_parameters` reads both
spellings of the rotary settings.
"""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

from taut.checkpoint import strict_json
from taut.errors import ModelFormatError

MAX_CONFIG_BYTES = 8 << 20
_INTS: dict[str, tuple[int, int]] = {
    "num_hidden_layers": (1, 1024),
    "hidden_size": (1, 65_536),
    "intermediate_size": (1, 1 << 20),
    "num_attention_heads": (1, 1024),
    "num_key_value_heads": (1, 1024),
    "head_dim": (1, 4096),
    "vocab_size": (1, 1 << 21),
    "max_position_embeddings": (1, 1 << 24),
    "type_vocab_size": (1, 1 << 16),
    "sliding_window": (1, 1 << 24),
    "embedding_size": (1, 65_536),
}
_NULL_MEANS_ABSENT = ("num_key_value_heads", "head_dim", "sliding_window")
_EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
_POSITIVE = ("factor", "rope_theta", "original_max_position_embeddings")
_ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor"),
}


def load(path: Path) -> dict[str, Any]:
    """The checked config of a model folder."""
    config = strict_json.load_object(path, name="config.json", max_bytes=MAX_CONFIG_BYTES)
    config.pop("auto_map", None)
    check(config, file="config.json")
    return config


def check(config: dict[str, Any], *, file: str) -> None:
    """ModelFormatError naming every key whose value is out of range."""
    problems = _problems(config)
    if problems:
        raise ModelFormatError("; ".join(problems), file=file)


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings in one form: `rope_type` ("default" when nothing is scaled), `rope_theta`, and the type's own fields.

    Accepts `rope_scaling` with `type` or `rope_type`, and the newer `rope_parameters`; absent or null means default. Both may be
    there: `check` has refused them where they differ.
    """
    found = {**_one_rope(config, "rope_scaling"), **_one_rope(config, "rope_parameters")}
    found.setdefault("rope_type", "default")
    if found.get("rope_theta") is None:
        found["rope_theta"] = config.get("rope_theta", 10_000.0)
    if config.get("partial_rotary_factor") is not None:
        found["partial_rotary_factor"] = config["partial_rotary_factor"]
    return found


def _one_rope(config: dict[str, Any], name: str) -> dict[str, Any]:
    """One of the two spellings with its type under `rope_type`; empty when it is absent."""
    given = config.get(name) or {}
    found = {key: value for key, value in given.items() if key not in ("type", "rope_type")}
    if given:
        kind = given.get("rope_type", given.get("type", "default"))
        found["rope_type"] = "longrope" if kind == "su" else kind  # its older name
    return found


def _problems(config: dict[str, Any]) -> list[str]:
    found = []
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_\-]{0,63}", model_type):
        found.append(f"model_type is {_shown(model_type)}; the name of a model family is expected")
    for key, (low, high) in _INTS.items():
        value = config.get(key)
        is_absent = key not in config or (value is None and key in _NULL_MEANS_ABSENT)
        if not is_absent and not (type(value) is int and low <= value <= high):
            found.append(f"{key} is {_shown(value)}; a whole number from {low} to {high:,} is accepted")
    for key in _EPSILONS:
        if key in config and not _is_number(config[key], 0.0, 1.0):
            found.append(f"{key} is {_shown(config[key])}; a number from 0 to 1 is accepted")
    if "rope_theta" in config and not _is_number(config["rope_theta"], 1e-3, 1e15):
        found.append(f"rope_theta is {_shown(config['rope_theta'])}; a positive number is accepted")
    return found + (_head_problems(config) if not found else []) + _rope_problems(config)


def _head_problems(config: dict[str, Any]) -> list[str]:
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    kv_heads = config.get("num_key_value_heads")
    found = []
    if hidden and heads and config.get("head_dim") is None and hidden % heads:
        found.append(f"num_attention_heads {heads} does not divide hidden_size {hidden}, and there is no head_dim")
    if heads and kv_heads and heads % kv_heads:
        found.append(f"num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}")
    return found


def _rope_problems(config: dict[str, Any]) -> list[str]:
    for key in ("rope_parameters", "rope_scaling"):
        if config.get(key) is not None and not isinstance(config[key], dict):
            return [f"{key} is {_shown(config[key])}; an object or null is expected"]
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if given and all(isinstance(value, dict) for value in given.values()):
        return []  # one set for each kind of layer: a matter of the families that have kinds
    if contradictions := _rope_contradictions(config):
        return contradictions
    rope = rope_parameters(config)
    kind = rope["rope_type"]
    if not isinstance(kind, str) or kind not in _ROPE_FIELDS:
        return [f"rope type is {_shown(kind)}; accepted are {', '.join(_ROPE_FIELDS)}"]
    found = [f"rope type {kind} needs {name}" for name in _ROPE_FIELDS[kind] if name not in rope]
    for name, value in rope.items():
        if name in ("short_factor", "long_factor"):
            if not isinstance(value, list) or len(value) > 4096 or not all(_is_number(item, 1e-6, 1e9) for item in value):
                found.append(f"{name} is {_shown(value)}; a list of positive numbers is accepted")
        elif name == "partial_rotary_factor":
            if value is not None and not _is_number(value, 1e-3, 1.0):
                found.append(f"{name} is {_shown(value)}; a number above 0, at most 1, is accepted")
        elif value is not None and name.endswith(_POSITIVE) and not _is_number(value, 1e-6, 1e15):
            found.append(f"{name} is {_shown(value)}; a positive number is accepted")
    if kind == "llama3" and not found and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        found.append("high_freq_factor must be greater than low_freq_factor")
    return found


def _rope_contradictions(config: dict[str, Any]) -> list[str]:
    """What is stated twice and not alike: the type within one spelling, and everything between the places that may hold it."""
    found = []
    for name in ("rope_parameters", "rope_scaling"):
        kinds = [config[name][key] for key in ("rope_type", "type") if key in (config.get(name) or {})]
        if len(kinds) == 2 and kinds[0] != kinds[1]:
            found.append(f"{name} has rope_type {_shown(kinds[0])} and type {_shown(kinds[1])}; remove the wrong one")
    new, old = _one_rope(config, "rope_parameters"), _one_rope(config, "rope_scaling")
    top = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
    places = (("rope_parameters", new), ("rope_scaling", old), ("the config itself", top))
    for (one, a), (other, b) in itertools.combinations(places, 2):
        for key in sorted(a.keys() & b.keys()):
            if a[key] is not None and b[key] is not None and a[key] != b[key]:
                found.append(f"{key} is {_shown(a[key])} in {one}, but {_shown(b[key])} in {other}; remove the wrong one")
    return found


def _is_number(value: object, low: float, high: float) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and low <= value <= high  # type: ignore[arg-type,operator]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
