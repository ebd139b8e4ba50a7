"""What tests and benchmarks stand on: models of any shape without a download, texts, and a differential runner.

    python -m taut.testing make smollm2-1.7b DIR       random weights in a real model's exact shape
    folder = tiny("llama", tmp_path, num_key_value_heads=1)

Knows the shapes of the families and how to write a checkpoint folder; the makers share nothing with how taut reads and runs
one, so that an error there cannot hide here. Nothing of it is used when serving.
"""

from __future__ import annotations

from taut.quality.texts import pydoc_text, pydoc_windows, sentences
from taut.testing.differential import Difference, compare, difference, ragged
from taut.testing.models import NAMES, make, tiny

__all__ = [
    "NAMES",
    "Difference",
    "compare",
    "difference",
    "make",
    "pydoc_text",
    "pydoc_windows",
    "ragged",
    "sentences",
    "tiny",
]
