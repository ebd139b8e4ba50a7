"""Malformed GGUF files."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hostile.case import Case, read_all
from hostile.raw import (
    ARRAY,
    BOOL,
    F32,
    GGML_F32,
    GGML_I32,
    GGML_Q8_0,
    I32,
    STRING,
    U32,
    U64,
    Field,
    gguf_field,
    gguf_file,
    gguf_string,
    gguf_tensor,
    llama_fields,
    llama_gguf,
    llama_tensors,
    write,
)
from taut.errors import UnsupportedModelError

GOOD = llama_gguf()


def _file(data: bytes) -> Callable[[Path], Path]:
    return lambda path: write(path / "model.gguf", data)


def _fields(*fields: bytes, **counts: int) -> Callable[[Path], Path]:
    return _file(gguf_file(list(fields), [], **counts))


def _raw_field(key: str, kind: int, value: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + value


def _tensors(*tensors: bytes, data: bytes = bytes(256), fields: tuple[bytes, ...] = ()) -> Callable[[Path], Path]:
    return _file(gguf_file(list(fields), list(tensors), data))


def _model(**changes: Field | None) -> Callable[[Path], Path]:
    return _file(llama_gguf(llama_fields(**changes)))


def _with_tensor(name: str, values: np.ndarray) -> Callable[[Path], Path]:
    fields = llama_fields()
    tensors = llama_tensors(len(fields["tokenizer.ggml.tokens"][1][1]))
    return _file(llama_gguf(fields, {**tensors, name: values.astype(np.float32)}))


def _without_tensor(name: str) -> Callable[[Path], Path]:
    tensors = llama_tensors(262)
    del tensors[name]
    return _file(llama_gguf(None, tensors))


def _alignment(value: int) -> bytes:
    return gguf_field("general.alignment", U32, value)


def _directory(path: Path) -> Path:
    (path / "model.gguf").mkdir()
    return path / "model.gguf"


def _two_files(path: Path) -> Path:
    write(path / "a.gguf", GOOD)
    write(path / "b.gguf", GOOD)
    return path


def _link_out(path: Path) -> Path:
    outside = write(path / "outside.gguf", GOOD)
    (path / "model").mkdir()
    (path / "model" / "model.gguf").symlink_to(outside)
    return path / "model"


def _nested(depth: int) -> bytes:
    return struct.pack("<IQ", ARRAY, 1) * depth + struct.pack("<IQ", U32, 0)


def _types(**changes: Any) -> Callable[[Path], Path]:
    return _model(**{f"tokenizer__ggml__{key}": value for key, value in changes.items()})


CONTAINER = [
    Case("empty", "B7", _file(b""), "an empty file"),
    Case("zeros", "B7", _file(bytes(64)), "is not GGUF but zeros"),
    Case("old-ggjt", "B7", _file(b"tjgg" + bytes(60)), "an old GGJT file"),
    Case("old-ggml", "B7", _file(b"lmgg" + bytes(60)), "an old GGML file"),
    Case("html", "B7", _file(b"<html><body>Not found</body></html>"), "an HTML page"),
    Case("lfs-pointer", "B7", _file(b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer"),
    Case("unknown-magic", "B7", _file(b"FUGG" + bytes(60)), "is not GGUF: begins with b'FUGG'"),
    Case("directory", "B7", _directory, "is a directory"),
    Case("two-files", "B7", _two_files, "holds 2 GGUF files; give one of them: a.gguf, b.gguf"),
    Case("link-out", "b.2", _link_out, "leads outside the model folder"),
    Case("magic-only", "B1", _file(b"GGUF"), "is truncated or corrupt: 4 bytes are declared, 0 remain"),
    Case("version-1", "b.2", _file(gguf_file([], [], version=1)), "versions 2 and 3 are accepted"),
    Case("big-endian", "b.2", _file(gguf_file([], [], version=3 << 24)), "is big-endian"),
    Case("cut-mid-header", "B1", _file(GOOD[:500]), "is truncated or corrupt"),
    Case("cut-last-byte", "B1", _file(GOOD[:-1]), "truncated or corrupt"),
    Case("cut-tenth", "B1", _file(GOOD[: len(GOOD) * 9 // 10]), "truncated or corrupt"),
    Case("empty-key", "B2", _fields(gguf_field("", U32, 1)), "is an empty metadata key"),
    Case("key-too-long", "b.2", _fields(gguf_field("k" * 65_537, U32, 1)), "at most 65,536 are accepted"),
    Case("key-not-utf8", "b.2", _fields(gguf_field(b"\xff\xfe", U32, 1)), "is not UTF-8"),
    Case("duplicate-key", "b.2", _fields(gguf_field("a", U32, 1), gguf_field("a", U32, 2)), "field a, byte 50: stands twice"),
    Case("key-count", "b.2", _fields(num_keys=2**62), "field key count"),
    Case("tensor-count", "b.2", _fields(num_tensors=2**62), "field tensor count"),
    Case("value-type", "b.2", _fields(_raw_field("a", 99, b"")), "has unknown value type 99"),
    Case("bool-of-two", "b.2", _fields(gguf_field("a", BOOL, 2)), "is a bool of value 2"),
    Case(
        "string-2^40",
        "B6",
        _fields(_raw_field("a", STRING, struct.pack("<Q", 2**40))),
        "declares a string of 1,099,511,627,776 bytes",
    ),
    Case("string-past-end", "B6", _fields(_raw_field("a", STRING, struct.pack("<Q", 1000))), "1,000 bytes are declared"),
    Case(
        "array-2^62",
        "B6",
        _fields(_raw_field("a", ARRAY, struct.pack("<IQ", U64, 2**62))),
        "declares 4,611,686,018,427,387,904 elements",
    ),
    Case("strings-2^62", "B6", _fields(_raw_field("a", ARRAY, struct.pack("<IQ", STRING, 2**62))), "elements, only"),
    Case("nested-arrays", "B6", _fields(_raw_field("a", ARRAY, _nested(1000))), "is an array of arrays"),
    Case("array-of-unknown", "b.2", _fields(_raw_field("a", ARRAY, struct.pack("<IQ", 77, 1))), "unknown value type 77"),
    Case("alignment-0", "B5", _fields(_alignment(0)), "is 0; a power of two"),
    Case("alignment-3", "B5", _fields(_alignment(3)), "is 3; a power of two"),
    Case("alignment-2^31", "B5", _fields(_alignment(2**31)), "is 2147483648; a power of two"),
    Case("alignment-int32", "B5", _fields(gguf_field("general.alignment", I32, 32)), "has value type 5; uint32 is accepted"),
    Case(
        "alignment-text", "B5", _fields(gguf_field("general.alignment", STRING, "32")), "has value type 8; uint32 is accepted"
    ),
    Case("dims-wrap", "B4", _tensors(gguf_tensor("a", (2**33, 2**33), GGML_F32, 0)), "truncated or corrupt"),
    Case("dim-0", "B4", _tensors(gguf_tensor("a", (8, 0), GGML_F32, 0)), "each must be at least 1"),
    Case("dim-negative", "B4", _tensors(gguf_tensor("a", (2**64 - 8,), GGML_F32, 0)), "each must be at least 1"),
    Case("five-dims", "B4", _tensors(gguf_tensor("a", (1, 1, 1, 1, 8), GGML_F32, 0)), "has 5 dimensions; 1 to 4 are accepted"),
    Case("no-dims", "B4", _tensors(gguf_tensor("a", (), GGML_F32, 0)), "has 0 dimensions"),
    Case("dims-2^32", "B4", _tensors(gguf_string("a") + struct.pack("<I", 2**32 - 1)), "has 4294967295 dimensions"),
    Case("type-id", "b.2", _tensors(gguf_tensor("a", (8,), 250, 0)), "has ggml type id 250"),
    Case(
        "type-int", "b.2", _tensors(gguf_tensor("a", (8,), GGML_I32, 0)), "ggml type I32 cannot be read", UnsupportedModelError
    ),
    Case("row-and-block", "b.2", _tensors(gguf_tensor("a", (33, 2), GGML_Q8_0, 0)), "Q8_0 needs a multiple of 32"),
    Case("offset-unaligned", "b.2", _tensors(gguf_tensor("a", (8,), GGML_F32, 4)), "not a multiple of the alignment 32"),
    Case("offset-past-end", "b.2", _tensors(gguf_tensor("a", (8,), GGML_F32, 2**40)), "truncated or corrupt"),
    Case("offset-wraps", "B4", _tensors(gguf_tensor("a", (8,), GGML_F32, 2**64 - 32)), "truncated or corrupt"),
    Case("overlap", "b.2", _tensors(gguf_tensor("a", (16,), GGML_F32, 0), gguf_tensor("b", (8,), GGML_F32, 32)), "overlaps a"),
    Case(
        "same-name", "b.2", _tensors(gguf_tensor("a", (8,), GGML_F32, 0), gguf_tensor("a", (8,), GGML_F32, 32)), "stands twice"
    ),
    Case("name-empty", "b.2", _tensors(gguf_tensor("", (8,), GGML_F32, 0)), "is an empty tensor name"),
]

MODEL = [
    Case("no-architecture", "b.2", _model(general__architecture=None), "field general.architecture: is missing"),
    Case(
        "other-architecture",
        "b.2",
        _model(general__architecture=(STRING, "mamba")),
        "GGUF architecture 'mamba'; accepted is 'llama'",
        UnsupportedModelError,
    ),
    Case("experts", "b.2", _model(llama__expert_count=(U32, 8)), "mixture-of-experts", UnsupportedModelError),
    Case("block-count-huge", "b.2", _model(llama__block_count=(U32, 100_000)), "is 100000; 1 to 1,024 is accepted"),
    Case(
        "block-count-low",
        "b.2",
        _with_tensor("blk.5.attn_norm.weight", np.ones(32)),
        "is of layer 5, but llama.block_count is 1",
    ),
    Case("block-count-high", "A3", _model(llama__block_count=(U32, 2)), "field blk.1.attn_q.weight: is missing"),
    Case("head-count-text", "b.2", _model(llama__attention__head_count=(STRING, "4")), "is a str; int is expected"),
    Case("head-count-bool", "b.2", _model(llama__attention__head_count=(BOOL, 1)), "is a bool; int is expected"),
    Case("head-count-0", "b.2", _model(llama__attention__head_count=(U32, 0)), "is 0; 1 to 1,024 is accepted"),
    Case("kv-heads-3", "b.2", _model(llama__attention__head_count_kv=(U32, 3)), "key-value heads 3"),
    Case("head-rows", "A8", _model(llama__rope__dimension_count=(U32, 16)), "4 heads of 16 need 64"),
    Case("eps-nan", "b.2", _model(llama__attention__layer_norm_rms_epsilon=(F32, float("nan"))), "rms_norm_eps is nan"),
    Case("eps-negative", "b.2", _model(llama__attention__layer_norm_rms_epsilon=(F32, -1.0)), "rms_norm_eps is -1.0"),
    Case("theta-inf", "b.2", _model(llama__rope__freq_base=(F32, float("inf"))), "rope_theta is inf"),
    Case(
        "rope-factor-nan",
        "b.2",
        _model(llama__rope__scaling__type=(STRING, "linear"), llama__rope__scaling__factor=(F32, float("nan"))),
        "factor is nan",
    ),
    Case("no-embedding", "b.2", _without_tensor("token_embd.weight"), "token_embd.weight: must be a (vocabulary, 32) matrix"),
    Case("embedding-shape", "b.2", _with_tensor("token_embd.weight", np.ones(32)), "must be a (vocabulary, 32) matrix"),
    Case(
        "rope-factors",
        "b.2",
        _with_tensor("rope_freqs.weight", np.full(4, 3.0)),
        "factors other than Llama 3's",
        UnsupportedModelError,
    ),
    Case(
        "rope-factors-nan",
        "b.2",
        _with_tensor("rope_freqs.weight", np.full(4, np.nan)),
        "factors other than",
        UnsupportedModelError,
    ),
    Case(
        "rope-factors-size", "b.2", _with_tensor("rope_freqs.weight", np.ones(7)), "factors other than", UnsupportedModelError
    ),
]

TOKENIZER = [
    Case(
        "pre-unknown",
        "b.2",
        _types(pre=(STRING, "jais")),
        "the pre-tokenizer 'jais'; accepted are gpt-2",
        UnsupportedModelError,
    ),
    Case("pre-absent", "b.2", _types(pre=None), "does not name its pre-tokenizer", UnsupportedModelError),
    Case("model-unknown", "b.2", _types(model=(STRING, "rwkv")), "tokenizer model 'rwkv'", UnsupportedModelError),
    Case("model-number", "b.2", _types(model=(U32, 1)), "is a int; str is expected"),
    Case(
        "no-tokens",
        "b.2",
        _file(llama_gguf(llama_fields(tokenizer__ggml__tokens=(ARRAY, (STRING, []))), llama_tensors(262))),
        "holds 0 tokens; 1 to 2,097,152",
    ),
    Case("tokens-numbers", "b.2", _types(tokens=(ARRAY, (U32, [1, 2]))), "is a ndarray; list is expected"),
    Case("token-not-utf8", "b.2", _types(tokens=(ARRAY, (STRING, [b"\xff"]))), "holds a string that is not UTF-8"),
    Case("types-floats", "C8", _types(token_type=(ARRAY, (F32, [1.0]))), "whole numbers are expected"),
    Case("scores-short", "b.2", _types(scores=(ARRAY, (F32, [1.0]))), "holds 1 scores for 262 tokens"),
    Case("eos-out", "A7", _types(eos_token_id=(U32, 5000)), "is 5000; the vocabulary has 262 tokens"),
    Case("eos-text", "b.2", _types(eos_token_id=(STRING, "2")), "is a str; int is expected"),
    Case("merge-one", "b.2", _types(merges=(ARRAY, (STRING, ["he"]))), "two tokens with a space between"),
    Case("merge-unknown", "b.2", _types(merges=(ARRAY, (STRING, ["zzz yyy"]))), "is not a usable tokenizer"),
    Case("spm-no-scores", "b.2", _types(model=(STRING, "llama")), "needs the scores of its tokens"),
    Case("template-number", "b.3", _model(tokenizer__chat_template=(U32, 1)), "field tokenizer.chat_template: is no text"),
    Case("template-huge", "b.3", _model(tokenizer__chat_template=(STRING, "x" * (257 << 10))), "at most 262,144 are accepted"),
]

CASES = CONTAINER + [Case(**{**case.__dict__, "act": read_all}) for case in MODEL + TOKENIZER]
