"""What an export takes and gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taut.quant.algorithms import Weight


@dataclass(frozen=True)
class Model:
    """What is exported, in Hugging Face's names and row order.

    `weights` may make its arrays when they are asked for: each is read twice, one at a time. `schemes`: the scheme of every quantized
    weight, by the weight's name. `folder`: the tokenizer's and other text files; `gguf`: the file the model came from, if it was one.
    """

    weights: Mapping[str, Weight]
    schemes: Mapping[str, str]
    config: dict[str, Any]
    folder: Path | None = None
    gguf: Path | None = None


@dataclass(frozen=True)
class Exported:
    """`formats`: how many weights became what; `widened`: quantized weights that were written as floats."""

    path: Path
    formats: dict[str, int]
    widened: tuple[str, ...] = field(default=())
