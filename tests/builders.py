"""Small graphs for tests, straight from the family files."""

from __future__ import annotations

from taut.graph import Graph
from taut.models import _decoder, _encoder, bert, llama, qwen3, roberta
from taut.ops.rope import RopeTable


def decoder_config(**changes: object) -> _decoder.Config:
    values = {
        "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "ffn_size": 96, "vocab_size": 300, "context_len": 128,
        "eps": 1e-5, "rope": RopeTable(10000.0, 16, 128), "tied": True, "biases": frozenset(),
    }  # fmt: skip
    return _decoder.Config(**{**values, **changes})  # type: ignore[arg-type]


def encoder_config(**changes: object) -> _encoder.Config:
    values = {
        "hidden_size": 64, "layers": 2, "heads": 4, "ffn_size": 128, "vocab_size": 300, "positions": 66, "position_offset": 2, "types": 1,
        "eps": 1e-5, "act": "gelu", "pooling": "mean", "normalize": True,
    }  # fmt: skip
    return _encoder.Config(**{**values, **changes})  # type: ignore[arg-type]


def graphs() -> dict[str, Graph]:
    """One graph per family."""
    return {
        "llama": llama.build(decoder_config(), 128),
        "qwen3": qwen3.build(decoder_config(head_dim=32, tied=False, rope=RopeTable(1e6, 32, 128)), 128),
        "bert": bert.build(encoder_config(position_offset=0, positions=64, types=2), 64),
        "roberta": roberta.build(encoder_config(), 64),
    }
