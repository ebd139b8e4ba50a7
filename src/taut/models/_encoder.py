"""The post-norm encoder that bert and roberta share (Devlin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

from taut.checkpoint import Checkpoint
from taut.errors import UnsupportedModelError
from taut.graph import Builder, Graph

_LAYER = {
    "attention.self.query": "q", "attention.self.key": "k", "attention.self.value": "v", "attention.output.dense": "o",
    "attention.output.LayerNorm": "attention_norm", "intermediate.dense": "up", "output.dense": "down", "output.LayerNorm": "mlp_norm",
}  # fmt: skip
_TOP = {
    "embeddings.word_embeddings": "words", "embeddings.position_embeddings": "positions", "embeddings.token_type_embeddings": "types",
    "embeddings.LayerNorm": "embed_norm",
}  # fmt: skip
_PREFIXES = ("bert.", "roberta.", "model.")
_ACTS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu"}


@dataclass(frozen=True)
class Config:
    """`position_offset` is added to every position (RoBERTa counts from its padding id + 1). `pooling` "" keeps one row per token.
    `max_text_len`: the tokens of a text that sentence-transformers would read; longer ones it cuts, here they are an error."""

    hidden_size: int
    layers: int
    heads: int
    ffn_size: int
    vocab_size: int
    positions: int
    position_offset: int
    types: int
    eps: float
    act: str
    pooling: str
    normalize: bool
    max_text_len: int | None = None

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def context_len(self) -> int:
        rows = self.positions - self.position_offset
        return rows if self.max_text_len is None else min(rows, self.max_text_len)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Config:
        c, pooling = checkpoint.config, checkpoint.pooling
        if (act := c.get("hidden_act", "gelu")) not in _ACTS:
            raise UnsupportedModelError(
                f"hidden_act {act!r} is not supported for {c['model_type']}; supported: {', '.join(_ACTS)}"
            )
        if (kind := c.get("position_embedding_type", "absolute")) != "absolute":
            raise UnsupportedModelError(f"position_embedding_type {kind!r} is not supported; supported: absolute")
        pad = c.get("pad_token_id")
        return cls(
            hidden_size=int(c["hidden_size"]),
            layers=int(c["num_hidden_layers"]),
            heads=int(c["num_attention_heads"]),
            ffn_size=int(c["intermediate_size"]),
            vocab_size=int(c["vocab_size"]),
            positions=int(c["max_position_embeddings"]),
            position_offset=(1 if pad is None else int(pad)) + 1 if c["model_type"] == "roberta" else 0,
            types=int(c.get("type_vocab_size", 2)),
            eps=float(c.get("layer_norm_eps", 1e-12)),
            act=_ACTS[act],
            pooling=pooling.mode if pooling else "mean",
            normalize=pooling.normalize if pooling else True,
            max_text_len=pooling.max_length if pooling else None,
        )


def rename(name: str) -> str | None:
    """Checkpoint tensor name -> weight key, None for a tensor that the model does not use."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    stem, _, last = name.rpartition(".")
    last = {"gamma": "weight", "beta": "bias"}.get(last, last)
    if stem in _TOP:
        return f"{_TOP[stem]}.{last}"
    parts = stem.split(".")
    if stem.startswith("encoder.layer.") and ".".join(parts[3:]) in _LAYER:
        return f"layers.{parts[2]}.{_LAYER['.'.join(parts[3:])]}.{last}"
    return None


def build(config: Config, context_len: int) -> Graph:
    """Sentence embeddings (sequences, hidden_size) and, first, the last hidden states (tokens, hidden_size)."""
    b, c = Builder(), config
    x = b.embed("word", b.weight("words.weight", c.vocab_size, c.hidden_size))
    where = b.embed(
        "position", b.weight("positions.weight", c.positions, c.hidden_size), index="positions", offset=c.position_offset
    )
    kind = b.embed("type", b.weight("types.weight", c.types, c.hidden_size), index="types")
    x = b.layer_norm("embed_norm", b.binary("add", "embedded", b.binary("add", "word_type", x, kind), where), c.eps)
    for layer in range(c.layers):
        x = _layer(b, c, f"layers.{layer}", x)
    pooled = b.unary("pool", "pooled", x, mode=c.pooling)
    return b.finish(x, b.unary("normalize", "embedding", pooled) if c.normalize else pooled)


def _layer(b: Builder, c: Config, at: str, x: str) -> str:
    q, k, v = (b.linear_of(f"{at}.{n}", x, c.hidden_size, bias=True) for n in "qkv")
    a = b.add_node(
        "attention_full",
        f"{at}.attention",
        (q, k, v),
        heads=c.heads,
        kv_heads=c.heads,
        head_dim=c.head_dim,
        scale=c.head_dim**-0.5,
    )
    o = b.linear_of(f"{at}.o", a, c.hidden_size, bias=True)
    x = b.layer_norm(f"{at}.attention_norm", b.binary("add", f"{at}.attended", o, x), c.eps)
    h = b.unary(c.act, f"{at}.act", b.linear_of(f"{at}.up", x, c.ffn_size, bias=True))
    d = b.linear_of(f"{at}.down", h, c.hidden_size, bias=True)
    return b.layer_norm(f"{at}.mlp_norm", b.binary("add", f"{at}.out", d, x), c.eps)
