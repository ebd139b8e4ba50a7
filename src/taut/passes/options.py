"""What a user may choose about the passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from taut.errors import UsageError

Precision = Literal["fp32", "bf16", "fp16", "int8"]


@dataclass(frozen=True)
class Options:
    """`group` overrides the activation scale group of every int8 linear (0: per token); None chooses by the input's width."""

    precision: Precision = "int8"
    disabled: tuple[str, ...] = ()
    group: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in get_args(Precision):
            raise UsageError(f"precision {self.precision!r} is not supported; accepted: {', '.join(get_args(Precision))}")
