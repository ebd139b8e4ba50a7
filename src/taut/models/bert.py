"""BERT (Devlin et al. 2018): post-norm encoder with learned positions and token types."""

from __future__ import annotations

from taut.models._encoder import Config, build, rename

__all__ = ["KIND", "Config", "build", "rename"]
KIND = "encoder"
