"""Malformed config.json, tokenizer files and the small files beside them; templates that attack the process that
renders them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hostile.case import Case, render
from hostile.raw import LLAMA, folder, write
from taut.errors import ModelNotFoundError, RequestError, UnsupportedModelError

TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": 2,
            "content": "<s>",
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"hello": 0, "[UNK]": 1}, "unk_token": "[UNK]"},
}


def _config(**changes: Any) -> Callable[[Path], Path]:
    return lambda path: folder(path, config={**LLAMA, **changes})


def _raw_config(data: bytes) -> Callable[[Path], Path]:
    return lambda path: folder(path, config__json=data)


def _tokenizer(**changes: Any) -> Callable[[Path], Path]:
    return lambda path: folder(path, tokenizer__json=json.dumps({**TOKENIZER, **changes}).encode())


def _beside(name: str, data: bytes) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        folder(path)
        write(path / name, data)
        return path

    return make


def _regex(pattern: str) -> Callable[[Path], Path]:
    return _tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False})


def _template(source: str) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        settings = json.dumps({"chat_template": source}).encode()
        return folder(path, tokenizer__json=json.dumps(TOKENIZER).encode(), tokenizer_config__json=settings)

    return make


def _pooling(**config: Any) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        modules = [{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}]
        folder(path, modules__json=json.dumps(modules).encode())
        write(path / "1_Pooling" / "config.json", json.dumps(config).encode())
        return path

    return make


def _config_link(path: Path) -> Path:
    folder(path / "model")
    (path / "model" / "config.json").unlink()
    (path / "model" / "config.json").symlink_to("/etc/passwd")
    return path / "model"


def _eos_text(path: Path) -> Path:
    return folder(path, config={**LLAMA, "eos_token_id": "2"}, tokenizer__json=json.dumps(TOKENIZER).encode())


def _empty_folder(path: Path) -> Path:
    (path / "model").mkdir()
    return path / "model"


CONFIG = [
    Case("config-empty", "b.2", _raw_config(b""), "an empty file"),
    Case("config-html", "B7", _raw_config(b"<!doctype html>"), "an HTML page"),
    Case("config-list", "b.2", _raw_config(b"[1]"), "a JSON object is expected"),
    Case(
        "config-duplicate",
        "b.2",
        _raw_config(b'{"model_type":"llama","vocab_size":1,"vocab_size":2}'),
        "'vocab_size' stands twice",
    ),
    Case("config-deep", "b.2", _raw_config(b'{"a":' + b"[" * 70 + b"]" * 70 + b"}"), "is nested deeper than 64 levels"),
    Case("config-very-deep", "b.2", _raw_config(b"[" * 1_000_000), "is nested deeper than 64 levels"),
    Case("config-9-mb", "b.2", _raw_config(b"{" + b" " * (9 << 20) + b"}"), "at most 8,388,608 are accepted"),
    Case("config-link-out", "b.2", _config_link, "leads outside the model folder"),
    Case("eps-nan", "b.2", _raw_config(json.dumps({**LLAMA, "rms_norm_eps": float("nan")}).encode()), "NaN is not JSON"),
    Case("eps-1e999", "b.2", _raw_config(b'{"model_type":"llama","rms_norm_eps":1e999}'), "rms_norm_eps is inf"),
    Case("eps-negative", "b.2", _config(rms_norm_eps=-1e-5), "rms_norm_eps is -1e-05; a number from 0 to 1"),
    Case("eps-text", "b.2", _config(layer_norm_eps="1e-5"), "layer_norm_eps is '1e-5'"),
    Case("layers-2000", "b.2", _config(num_hidden_layers=2000), "num_hidden_layers is 2000; a whole number from 1 to 1,024"),
    Case("layers-float", "b.2", _config(num_hidden_layers=2.0), "num_hidden_layers is 2.0"),
    Case("layers-bool", "b.2", _config(num_hidden_layers=True), "num_hidden_layers is True"),
    Case("layers-negative", "b.2", _config(num_hidden_layers=-1), "num_hidden_layers is -1"),
    Case("hidden-2^40", "b.2", _config(hidden_size=2**40), "hidden_size is 1099511627776"),
    Case("vocab-2^22", "b.2", _config(vocab_size=2**22), "vocab_size is 4194304"),
    Case("positions-2^25", "b.2", _config(max_position_embeddings=2**25), "max_position_embeddings is 33554432"),
    Case("heads-5", "b.2", _config(num_attention_heads=5, num_key_value_heads=5), "does not divide hidden_size 32"),
    Case("kv-heads-3", "b.2", _config(num_key_value_heads=3), "does not divide num_attention_heads 4"),
    Case(
        "several-at-once",
        "b.2",
        _config(vocab_size=0, hidden_size=0),
        "hidden_size is 0; a whole number from 1 to 65,536 is accepted; vocab",
    ),
    Case("model-type-path", "b.2", _config(model_type="../../os"), "model_type is '../../os'"),
    Case("model-type-absent", "b.2", _raw_config(b"{}"), "model_type is None"),
    Case(
        "rope-llama3-short",
        "A5",
        _config(rope_scaling={"rope_type": "llama3", "factor": 8.0}),
        "rope type llama3 needs low_freq_factor",
    ),
    Case("rope-unknown", "A5", _config(rope_scaling={"type": "magic"}), "rope type is 'magic'; accepted are default, linear"),
    Case("rope-number", "A6", _config(rope_scaling=8), "an object or null is expected"),
    Case("rope-factor-0", "A6", _config(rope_scaling={"type": "linear", "factor": 0}), "factor is 0; a positive number"),
    Case("rope-new-spelling", "A5", _config(rope_parameters={"rope_type": "linear"}), "rope type linear needs factor"),
    Case("theta-0", "b.2", _config(rope_theta=0), "rope_theta is 0"),
    Case("eos-text", "C7", _eos_text, "a token id, a list of them or null is expected"),
    Case("empty-folder", "B7", _empty_folder, "neither config.json nor a .gguf file", ModelNotFoundError),
    Case(
        "modules-path",
        "b.2",
        _beside("modules.json", b'[{"type":"a.Pooling","path":"../.."}]'),
        "the name of a folder in the model",
    ),
    Case(
        "modules-dense",
        "b.2",
        _beside("modules.json", b'[{"type":"a.Dense","path":"2_Dense"}]'),
        "module 'Dense'",
        UnsupportedModelError,
    ),
    Case("modules-object", "b.2", _beside("modules.json", b"{}"), "must be a list"),
    Case(
        "pooling-two",
        "b.2",
        _pooling(pooling_mode_mean_tokens=True, pooling_mode_cls_token=True),
        "pooling_mode_mean_tokens + ",
        UnsupportedModelError,
    ),
    Case("pooling-none", "b.2", _pooling(), "not stated", UnsupportedModelError),
]

TOKENIZERS = [
    Case("tokenizer-cut", "b.2", _beside("tokenizer.json", json.dumps(TOKENIZER).encode()[:-9]), "is not valid JSON"),
    Case(
        "tokenizer-lfs", "B7", _beside("tokenizer.json", b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer"
    ),
    Case("tokenizer-list", "b.2", _beside("tokenizer.json", b"[]"), "must be an object with a model"),
    Case("tokenizer-deep", "b.2", _beside("tokenizer.json", b'{"model":' * 5000), "is nested deeper than 64 levels"),
    Case("tokenizer-65-mb", "b.2", _beside("tokenizer.json", b" " * (65 << 20)), "at most 67,108,864 are accepted"),
    Case("tokenizer-kind", "b.2", _tokenizer(model={"type": "Oracle"}), "is not a usable tokenizer"),
    Case(
        "tokenizer-id-negative",
        "b.2",
        _tokenizer(model={"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}),
        "is not a usable tokenizer",
    ),
    Case(
        "tokenizer-merge",
        "b.2",
        _tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": ["b c"]}),
        "is not a usable tokenizer",
    ),
    Case(
        "tokenizer-charsmap",
        "b.2",
        _tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "is not a usable tokenizer",
    ),
    Case(
        "tokenizer-id-2^31",
        "A7",
        _tokenizer(
            decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False},
            model={"type": "WordLevel", "vocab": {"a": 2**31}, "unk_token": "a"},
        ),
        "has the token id 2,147,483,648",
    ),
    Case(
        "tokenizer-no-unknown",
        "b.2",
        _tokenizer(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}),
        "is not a usable tokenizer: WordLevel error: Missing [UNK] token",
    ),
    Case("regex-nested", "F1", _regex("(a+)+$"), "its time could grow without bound", UnsupportedModelError),
    Case("regex-choice", "F1", _regex("(?:a|aa)*b"), "its time could grow without bound", UnsupportedModelError),
    Case("regex-counted", "F1", _regex("([a-z]{1,})*x"), "its time could grow without bound", UnsupportedModelError),
    Case("regex-long", "F1", _regex("a" * 5000), "is longer than 4,096 characters", UnsupportedModelError),
    Case(
        "tokenizer-multiplies",
        "b.2",
        _tokenizer(normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10**6}),
        "make up to 1,000,000 characters of one",
        UnsupportedModelError,
    ),
    Case("regex-open", "F1", _regex("[a"), "is not a usable tokenizer"),
    Case("vocab-txt-bare", "b.2", _beside("vocab.txt", b"hello\nworld\n"), "has no [UNK] and no [CLS] and no [SEP]"),
    Case("vocab-txt-binary", "b.2", _beside("vocab.txt", b"\xff\xfe\n"), "is not UTF-8"),
]

_LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
_DOUBLING = "{% set x = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set x.s = x.s ~ x.s %}{% endfor %}"
_SHARED = "{% set x = namespace(s=[1]) %}{% for i in range(60) %}{% set x.s = [x.s, x.s] %}{% endfor %}{{ x.s }}"
_FAILED = "the model's chat template failed: "

_TEMPLATES: list[tuple[str, str, str]] = [
    ("syntax", "{% if %}", "cannot be compiled: line 1"),
    ("unknown-tag", "{% include_code 'x' %}", "cannot be compiled: line 1"),
    ("endless-loops", _LOOPS, "took longer than 2 s"),
    ("range-huge", "{% for a in range(10**9) %}{% endfor %}", _FAILED + "OverflowError: Range too big"),
    ("doubling-string", _DOUBLING, "template"),
    ("shared-lists", _SHARED, "template"),
    ("big-power", "{{ 10 ** (10 ** 10) }}", "template"),
    ("big-string", "{{ 'a' * 10**10 }}", "template"),
    ("big-pad", "{{ 'a'.ljust(10**10) }}", "template"),
    ("big-percent", "{{ '%9999999999d' % 1 }}", "template"),
    (
        "long-output",
        "{% for a in range(90000) %}aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}",
        "makes more than 65,536 characters",
    ),
    ("recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion is too deep"),
    ("nesting", "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "cannot be compiled"),
    ("class", "{{ ''.__class__.__mro__ }}", _FAILED),
    ("subclasses", "{{ messages.__class__.__base__.__subclasses__() }}", _FAILED),
    ("format", "{{ '{0.__class__}'.format(1) }}", _FAILED),
    ("format-map", "{{ '{a}'.format_map({'a': 1}) }}", _FAILED),
    ("append", "{{ messages.append(1) }}", _FAILED),
    ("builtins", "{{ raise_exception.__globals__['os'] }}", _FAILED),
    ("lipsum", "{{ lipsum.__globals__['os'] }}", _FAILED),
    ("cycler", "{{ cycler.__init__.__globals__ }}", _FAILED),
    ("self", "{{ self._TemplateReference__context.name }}", _FAILED),
    ("include", "{% include '/etc/passwd' %}", _FAILED),
    ("import", "{% import 'os' as os %}", _FAILED),
    ("refusal", "{{ raise_exception('roles must alternate') }}", "refuses the messages: roles must alternate"),
    ("undefined-call", "{{ nothing_here() }}", "'nothing_here' is undefined"),
]

TEMPLATES = [
    Case("template-" + name, "C4" if name == "refusal" else "b.3", _template(source), message, RequestError, render)
    for name, source, message in _TEMPLATES
]

CASES = CONFIG + TOKENIZERS + TEMPLATES
