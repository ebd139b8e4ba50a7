"""Graph rewrites, one file each, run in the order of pipeline.py."""

from __future__ import annotations

from taut.passes.options import PRECISIONS, Options, parse_pins
from taut.passes.pipeline import PIPELINE, is_run, optimize

__all__ = ["PIPELINE", "PRECISIONS", "Options", "is_run", "optimize", "parse_pins"]
