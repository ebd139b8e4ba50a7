"""RoBERTa (Liu et al. 2019), the architecture of CLINE: BERT whose positions count from the padding id + 1."""

from __future__ import annotations

from taut.models._encoder import Config, build, rename

__all__ = ["KIND", "Config", "build", "rename"]
KIND = "encoder"
