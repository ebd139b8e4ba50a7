"""The pre-norm decoder that llama and qwen3 share: RMSNorm, rotary attention over the cache, gated MLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taut.checkpoint import Checkpoint, rope_parameters
from taut.errors import UnsupportedModelError
from taut.graph import Builder, Graph
from taut.ops.rope import RopeTable

_LAYER = {
    "input_layernorm": "attention_norm", "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v", "self_attn.o_proj": "o",
    "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "mlp_norm", "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
_TOP = {"model.embed_tokens.weight": "embed.weight", "model.norm.weight": "final_norm.weight", "lm_head.weight": "head.weight"}


@dataclass(frozen=True)
class Config:
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    context_len: int
    eps: float
    rope: RopeTable
    tied: bool
    biases: frozenset[str]  # of "qkv", "o", "mlp"

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Config:
        c = checkpoint.config
        heads = int(c["num_attention_heads"])
        head_dim = int(c.get("head_dim") or c["hidden_size"] // heads)
        if c.get("hidden_act", "silu") != "silu":
            raise UnsupportedModelError(
                f"hidden_act {c['hidden_act']!r} is not supported for {c['model_type']}; supported: silu"
            )
        biases = {"qkv", "o"} if c.get("attention_bias") else set()
        return cls(
            hidden_size=int(c["hidden_size"]),
            layers=int(c["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(c.get("num_key_value_heads") or heads),
            head_dim=head_dim,
            ffn_size=int(c["intermediate_size"]),
            vocab_size=int(c["vocab_size"]),
            context_len=int(c.get("max_position_embeddings") or 2048),
            eps=float(c.get("rms_norm_eps", 1e-6)),
            rope=_rope(c, head_dim),
            tied=bool(c.get("tie_word_embeddings", False))
            or ("lm_head.weight" not in checkpoint.tensors and "tie_word_embeddings" not in c),
            biases=frozenset(biases | ({"mlp"} if c.get("mlp_bias") else set())),
        )


def _rope(c: dict[str, Any], head_dim: int) -> RopeTable:
    scaling = rope_parameters(c)
    if any(isinstance(value, dict) for value in scaling.values()):
        raise UnsupportedModelError("rope settings of their own for each kind of layer are not supported")
    kind, theta = scaling["rope_type"], float(scaling["rope_theta"])
    rotary_dim = int(head_dim * float(scaling.get("partial_rotary_factor") or 1.0))
    if kind not in ("default", "linear"):
        raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; supported: default, linear")
    factor = float(scaling["factor"]) if kind == "linear" else 1.0
    return RopeTable(theta, rotary_dim, int(c.get("max_position_embeddings") or 2048), factor)


def rename(name: str) -> str | None:
    """Checkpoint tensor name -> weight key, None for a tensor that the model does not use."""
    if name in _TOP:
        return _TOP[name]
    parts = name.split(".")
    if name.startswith("model.layers.") and len(parts) > 4 and ".".join(parts[3:-1]) in _LAYER:
        return f"layers.{parts[2]}.{_LAYER['.'.join(parts[3:-1])]}.{parts[-1]}"
    return None


def build(config: Config, context_len: int, *, head_norms: bool) -> Graph:
    """Causal language model; the output is logits (rows, vocab_size). `head_norms`: RMSNorm on each query and key head before RoPE."""
    b = Builder()
    rope = b.constant("rope", RopeTable(config.rope.theta, config.rope.rotary_dim, context_len, config.rope.factor))
    table = b.weight("embed.weight", config.vocab_size, config.hidden_size)
    x = b.embed("embedded", table)
    for layer in range(config.layers):
        x = _layer(b, config, f"layers.{layer}", layer, x, rope, head_norms)
    x = b.rms_norm("final_norm", b.unary("select", "last", x), config.eps)
    head = table if config.tied else b.weight("head.weight", config.vocab_size, config.hidden_size)
    return b.finish(b.linear("logits", x, head))


def _layer(b: Builder, c: Config, at: str, layer: int, x: str, rope: str, head_norms: bool) -> str:
    h = b.rms_norm(f"{at}.attention_norm", x, c.eps)
    q = b.linear_of(f"{at}.q", h, c.heads * c.head_dim, bias="qkv" in c.biases)
    k = b.linear_of(f"{at}.k", h, c.kv_heads * c.head_dim, bias="qkv" in c.biases)
    v = b.linear_of(f"{at}.v", h, c.kv_heads * c.head_dim, bias="qkv" in c.biases)
    if head_norms:
        q, k = (b.rms_norm(f"{at}.{n}_norm", value, c.eps, head_dim=c.head_dim) for n, value in (("q", q), ("k", k)))
    turn = {"head_dim": c.head_dim, "rotary_dim": c.rope.rotary_dim}
    q, k = (b.add_node("rope", f"{at}.{n}_rope", (value,), (rope,), **turn) for n, value in (("q", q), ("k", k)))
    kv = b.add_node("cache_write", f"{at}.kv", (k, v), layer=layer, head_dim=c.head_dim)
    a = b.add_node(
        "attention", f"{at}.attention", (q, kv),
        layer=layer, heads=c.heads, kv_heads=c.kv_heads, head_dim=c.head_dim, scale=c.head_dim**-0.5,
    )  # fmt: skip
    x = b.binary("add", f"{at}.attended", x, b.linear_of(f"{at}.o", a, c.hidden_size, bias="o" in c.biases))
    h = b.rms_norm(f"{at}.mlp_norm", x, c.eps)
    gate = b.unary("silu", f"{at}.silu", b.linear_of(f"{at}.gate", h, c.ffn_size, bias="mlp" in c.biases))
    m = b.binary("mul", f"{at}.mul", gate, b.linear_of(f"{at}.up", h, c.ffn_size, bias="mlp" in c.biases))
    return b.binary("add", f"{at}.out", x, b.linear_of(f"{at}.down", m, c.hidden_size, bias="mlp" in c.biases))
