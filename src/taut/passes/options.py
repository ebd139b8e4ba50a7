"""What a user may choose about the passes."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from taut.errors import UsageError
from taut.graph import Graph, Node

Precision = Literal["fp32", "bf16", "fp16", "int8", "int4-g128", "int4-g64", "int4-g32"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


@dataclass(frozen=True)
class Options:
    """`group` overrides the activation scale group of every int8 linear (0: per token); None chooses by the input's width.

    `pins` gives single linears a precision of their own: (pattern of the linear's name, precision), the last match counting. `kv` is the
    format of the KV cache (engine/kv_cache.py).
    """

    precision: Precision = "int8"
    disabled: tuple[str, ...] = ()
    group: int | None = None
    pins: tuple[tuple[str, str], ...] = ()
    kv: str = ""

    def __post_init__(self) -> None:
        for precision in self.precisions:
            if precision not in PRECISIONS:
                raise UsageError(f"precision {precision!r} is not supported; accepted: {', '.join(PRECISIONS)}")

    @property
    def precisions(self) -> set[str]:
        """Every precision that a linear may get."""
        return {self.precision, *(precision for _, precision in self.pins)}

    def precision_of(self, node: Node) -> str:
        """The precision of a linear: its own name or, in a fused one, that of any part decides."""
        matches = [precision for pattern, precision in self.pins if _is_named(node, pattern)]
        return matches[-1] if matches else self.precision

    def check_pins(self, graph: Graph) -> None:
        """UsageError for a pin that names no linear of `graph`, whatever precision it gives."""
        linears = [node for node in graph.nodes if node.op.startswith("linear") or node.op == "qkv_attention"]
        for pattern, _ in self.pins:
            if not any(_is_named(node, pattern) for node in linears):
                names = ", ".join(sorted(node.name for node in linears)[:8])
                raise UsageError(f"pin {pattern!r} names no linear layer; layers are named as {names}, …")


def _is_named(node: Node, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (node.name, *(part.name for part in node.decompose())))


def parse_pins(texts: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """'layers.*.down=fp16' and the like as Options.pins; UsageError for one that is not PATTERN=PRECISION."""
    pins = []
    for text in texts:
        pattern, equals, precision = text.rpartition("=")
        if not equals or not pattern or precision not in PRECISIONS:
            accepted = ", ".join(PRECISIONS)
            raise UsageError(f"pin {text!r} is not PATTERN=PRECISION, as 'layers.*.down=fp16'; precisions: {accepted}")
        pins.append((pattern, precision))
    return tuple(pins)
