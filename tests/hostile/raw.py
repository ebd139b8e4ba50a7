"""Writers that put any bytes they are told to into safetensors and GGUF files, sound or not, and small sound models to spoil.

They share no code with the readers under test.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_PACK = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
GGML_F32, GGML_F16, GGML_Q4_0, GGML_Q8_0, GGML_I32 = 0, 1, 2, 8, 26

Tensors = dict[str, np.ndarray]
Field = tuple[int, Any]  # (value type, value); an array is (ARRAY, (element type, list))

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 32, 4, 2, 8, 64
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def write(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# safetensors


def safetensors(header: dict[str, Any] | bytes, data: bytes = b"", *, header_len: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if header_len is None else header_len) + text + data


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def pack(tensors: Tensors) -> bytes:
    """A sound file of float32 tensors."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values, np.float32).tobytes()
        header[name] = entry(list(values.shape), len(data), len(data) + len(raw))
        data += raw
    return safetensors(header, data)


# Folders

LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}


def folder(path: Path, *, config: dict[str, Any] | None = None, weights: bytes | None = None, **files: bytes) -> Path:
    """A model folder. `files` are other files, by name with "__" for "."."""
    write(path / "config.json", json.dumps(LLAMA if config is None else config).encode())
    if weights is None:
        weights = pack({"model.embed_tokens.weight": np.ones((64, HIDDEN))})
    if weights:
        write(path / "model.safetensors", weights)
    for name, data in files.items():
        write(path / name.replace("__", "."), data)
    return path


def sharded(path: Path, shards: dict[str, Tensors], weight_map: dict[str, Any] | None = None) -> Path:
    """A folder with an index; `weight_map` replaces the true one."""
    true_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    index = {"metadata": {}, "weight_map": true_map if weight_map is None else weight_map}
    folder(path, weights=b"")
    write(path / "model.safetensors.index.json", json.dumps(index).encode())
    for shard, tensors in shards.items():
        write(path / shard, pack(tensors))
    return path


# GGUF


def gguf_string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf_value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return gguf_string(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(gguf_value(element, item) for item in items)
    return struct.pack("<" + _PACK[kind], value)


def gguf_field(key: str | bytes, kind: int, value: Any) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + gguf_value(kind, value)


def gguf_tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        gguf_string(name)
        + struct.pack("<I", len(dims))
        + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )


def gguf_file(fields: list[bytes], tensors: list[bytes], data: bytes = b"", *, alignment: int = 32, **counts: int) -> bytes:
    """`counts` may replace version, num_tensors and num_keys."""
    head = b"GGUF" + struct.pack(
        "<IQQ", counts.get("version", 3), counts.get("num_tensors", len(tensors)), counts.get("num_keys", len(fields))
    )
    body = head + b"".join(fields) + b"".join(tensors)
    return body + b"\0" * (-len(body) % alignment) + data


def byte_vocabulary() -> list[str]:
    """GPT-2's 256 byte characters, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def llama_fields(**changes: Field | None) -> dict[str, Field]:
    """The metadata of the tiny model. `changes` replace or (None) remove a key, with "__" for "."."""
    tokens = [*SPECIAL, *byte_vocabulary(), "he", "ll", "hell"]
    fields: dict[str, Field] = {
        "general.architecture": (STRING, "llama"),
        "llama.block_count": (U32, 1),
        "llama.context_length": (U32, 128),
        "llama.embedding_length": (U32, HIDDEN),
        "llama.feed_forward_length": (U32, INTERMEDIATE),
        "llama.attention.head_count": (U32, HEADS),
        "llama.attention.head_count_kv": (U32, KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
        "llama.rope.freq_base": (F32, 10_000.0),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, "smollm"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, tokens)),
        "tokenizer.ggml.token_type": (ARRAY, (I32, [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))),
        "tokenizer.ggml.merges": (ARRAY, (STRING, ["h e", "l l", "he ll"])),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
    }
    for key, field in changes.items():
        name = key.replace("__", ".")
        if field is None:
            del fields[name]
        else:
            fields[name] = field
    return fields


def llama_tensors(vocab_size: int) -> Tensors:
    rng = np.random.default_rng(7)
    shapes = {
        "token_embd.weight": (vocab_size, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "blk.0.attn_output.weight": (HIDDEN, HEADS * HEAD_DIM),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_up.weight": (INTERMEDIATE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, INTERMEDIATE),
    }
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def llama_gguf(fields: dict[str, Field] | None = None, tensors: Tensors | None = None) -> bytes:
    """A sound tiny llama model in float32, from the given metadata and tensors."""
    fields = llama_fields() if fields is None else fields
    if tensors is None:
        tensors = llama_tensors(len(fields["tokenizer.ggml.tokens"][1][1]) if "tokenizer.ggml.tokens" in fields else 64)
    entries, data = [], b""
    for name, values in tensors.items():
        entries.append(gguf_tensor(name, values.shape[::-1], GGML_F32, len(data)))
        data += values.tobytes()
        data += b"\0" * (-len(data) % 32)
    return gguf_file([gguf_field(key, kind, value) for key, (kind, value) in fields.items()], entries, data)
