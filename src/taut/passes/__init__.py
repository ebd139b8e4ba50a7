"""Graph rewrites, one file each, run in the order of pipeline.py."""

from __future__ import annotations

from taut.passes.pipeline import PIPELINE, Options, is_run, optimize

__all__ = ["PIPELINE", "Options", "is_run", "optimize"]
