"""Qwen3: the llama layout with RMSNorm on every query and key head."""

from __future__ import annotations

from taut.graph import Graph
from taut.models import _decoder
from taut.models._decoder import Config, rename

__all__ = ["KIND", "Config", "build", "rename"]
KIND = "decoder"


def build(config: Config, context_len: int) -> Graph:
    """The graph for sequences of at most `context_len` tokens."""
    return _decoder.build(config, context_len, head_norms=True)
