"""config.json and tensor names of every family, as the hub spells them.

`tensors(config)` lists what a checkpoint of that configuration holds, in file order, with the kind of value each wants.
It is written from the families' papers and public checkpoints and shares nothing with `taut.models`: the two check each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Config = Mapping[str, Any]
Kind = Literal["linear", "embedding", "norm", "bias"]


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]
    kind: Kind


_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "position_embedding_type": "absolute",
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
_ROBERTA = {
    "architectures": ["RobertaModel"],
    "model_type": "roberta",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "position_embedding_type": "absolute",
    "type_vocab_size": 1,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


def _decoder(
    vocab: int, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, positions: int
) -> dict[str, Any]:
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": positions,
    }


def _encoder(vocab: int, hidden: int, intermediate: int, layers: int, heads: int, positions: int) -> dict[str, Any]:
    shape = _decoder(vocab, hidden, intermediate, layers, heads, heads, positions)
    del shape["num_key_value_heads"]
    return shape


def _rope(theta: float) -> dict[str, Any]:
    """Both spellings: the older top-level key, and the nested one that newer tools write and read."""
    return {"rope_theta": theta, "rope_parameters": {"rope_type": "default", "rope_theta": theta}}


# The shapes of the public checkpoints of those names.
REAL: dict[str, dict[str, Any]] = {
    "smollm2-1.7b": _LLAMA | _decoder(49152, 2048, 8192, 24, 32, 32, 8192) | _rope(130000.0),
    "smollm2-135m-shape": _LLAMA | _decoder(49152, 576, 1536, 30, 9, 3, 8192) | _rope(100000.0),
    "qwen3-1.7b": _QWEN3 | _decoder(151936, 2048, 6144, 28, 16, 8, 40960) | _rope(1000000.0) | {"head_dim": 128},
    "roberta-base": _ROBERTA | _encoder(50265, 768, 3072, 12, 12, 514),
}
# Small and uneven: grouped heads, inner sizes that are no multiple of 64, vocabularies larger than the tokenizer's.
TINY: dict[str, dict[str, Any]] = {
    "llama": _LLAMA | _decoder(320, 96, 176, 3, 6, 2, 256) | _rope(10000.0),
    "qwen3": _QWEN3 | _decoder(320, 96, 176, 3, 4, 2, 256) | _rope(1000000.0) | {"head_dim": 32},
    "bert": _BERT | _encoder(320, 96, 200, 3, 4, 64),
    "roberta": _ROBERTA | _encoder(320, 96, 200, 3, 4, 66),
}


def tensors(config: Config) -> list[Tensor]:
    """Every tensor of a checkpoint with this config.json. `model_type` is one of llama, qwen3, bert, roberta."""
    family = {"llama": _decoder_tensors, "qwen3": _decoder_tensors, "bert": _encoder_tensors, "roberta": _encoder_tensors}
    return list(family[config["model_type"]](config))


def _linear(name: str, out_features: int, in_features: int, bias: bool) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (out_features, in_features), "linear")
    if bias:
        yield Tensor(f"{name}.bias", (out_features,), "bias")


def _decoder_tensors(c: Config) -> Iterator[Tensor]:
    hidden, inner, heads = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"]
    head_dim = c.get("head_dim") or hidden // heads
    q, kv = heads * head_dim, c["num_key_value_heads"] * head_dim
    attention_bias, mlp_bias = c.get("attention_bias", False), c.get("mlp_bias", False)
    yield Tensor("model.embed_tokens.weight", (c["vocab_size"], hidden), "embedding")
    for i in range(c["num_hidden_layers"]):
        base = f"model.layers.{i}."
        yield Tensor(base + "input_layernorm.weight", (hidden,), "norm")
        for name, out_features, in_features in (("q", q, hidden), ("k", kv, hidden), ("v", kv, hidden), ("o", hidden, q)):
            yield from _linear(f"{base}self_attn.{name}_proj", out_features, in_features, attention_bias)
        if c["model_type"] == "qwen3":
            yield Tensor(base + "self_attn.q_norm.weight", (head_dim,), "norm")
            yield Tensor(base + "self_attn.k_norm.weight", (head_dim,), "norm")
        yield Tensor(base + "post_attention_layernorm.weight", (hidden,), "norm")
        for name, out_features, in_features in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield from _linear(f"{base}mlp.{name}_proj", out_features, in_features, mlp_bias)
    yield Tensor("model.norm.weight", (hidden,), "norm")
    if not c["tie_word_embeddings"]:
        yield Tensor("lm_head.weight", (c["vocab_size"], hidden), "linear")


def _encoder_tensors(c: Config) -> Iterator[Tensor]:
    hidden, inner = c["hidden_size"], c["intermediate_size"]

    def layer_norm(name: str) -> Iterator[Tensor]:
        yield Tensor(f"{name}.weight", (hidden,), "norm")
        yield Tensor(f"{name}.bias", (hidden,), "bias")

    yield Tensor("embeddings.word_embeddings.weight", (c["vocab_size"], hidden), "embedding")
    yield Tensor("embeddings.position_embeddings.weight", (c["max_position_embeddings"], hidden), "embedding")
    yield Tensor("embeddings.token_type_embeddings.weight", (c["type_vocab_size"], hidden), "embedding")
    yield from layer_norm("embeddings.LayerNorm")
    for i in range(c["num_hidden_layers"]):
        base = f"encoder.layer.{i}."
        for name in ("query", "key", "value"):
            yield from _linear(f"{base}attention.self.{name}", hidden, hidden, True)
        yield from _linear(base + "attention.output.dense", hidden, hidden, True)
        yield from layer_norm(base + "attention.output.LayerNorm")
        yield from _linear(base + "intermediate.dense", inner, hidden, True)
        yield from _linear(base + "output.dense", hidden, inner, True)
        yield from layer_norm(base + "output.LayerNorm")
