"""What a user may choose about the passes, and what an artefact states of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType

from taut.errors import UsageError
from taut.graph import Graph, Node
from taut.quant.formats import SCHEMES, fitting
from taut.quant.schemes.static import Calibrated

PRECISIONS: tuple[str, ...] = tuple(SCHEMES)
NEEDS_CALIBRATION = tuple(name for name, format_ in SCHEMES.items() if format_.inputs == "static")
# Names that stand for several linears of a layer, or for one by its use.
BLOCKS = {"q": ("attention", "first"), "k": ("attention", "first"), "v": ("attention", "first"), "o": ("attention",)}
BLOCKS |= dict.fromkeys(("gate", "up", "down"), ("mlp",))
HEAD = "head"  # the linear that makes logits, and its name in pins


@dataclass(frozen=True)
class Options:
    """`group` overrides the activation scale group of every int8 linear (0: per token); None chooses by the input's width.

    `pins` gives single linears a precision of their own: (pattern of the linear's name, precision), the last match counting. `formats`
    says every linear's scheme by its weight's key, as a quantized artefact states it, `static` how its input is quantized, `smoothed` the
    weights of norms that the artefact has divided ones of too (split_norms). `kv`
    is the format of the KV cache (engine/kv_cache.py).
    """

    precision: str = "int8"
    disabled: tuple[str, ...] = ()
    group: int | None = None
    pins: tuple[tuple[str, str], ...] = ()
    kv: str = ""
    formats: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    static: Mapping[str, Calibrated] = field(default_factory=lambda: MappingProxyType({}))
    smoothed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for precision in self.precisions:
            if precision not in PRECISIONS:
                raise UsageError(f"precision {precision!r} is not supported; accepted: {', '.join(PRECISIONS)}")

    @property
    def precisions(self) -> set[str]:
        """Every precision that a linear may get."""
        return {*self.formats.values()} or {self.precision, *(precision for _, precision in self.pins)}

    def precision_of(self, node: Node) -> str:
        """The precision asked for a linear: its own name or, in a fused one, that of any part decides."""
        matches = [precision for pattern, precision in self.pins if is_named(node, pattern)]
        return matches[-1] if matches else self.precision

    def scheme_of(self, graph: Graph, node: Node) -> str:
        """The scheme that a linear gets: what the artefact states, else what is asked for, as far as it fits the layer.

        With int4 weights, what reads selected rows instead of tokens (the head, whose table may be the embedding's, and an encoder's
        pooler) stays int8.
        """
        if self.formats:
            keys = [part.weights[0] for part in node.decompose() if part.op == "linear"]
            return self.formats.get(keys[0], "fp32")
        signature = graph.signature(node.inputs[0])
        asked = self.precision_of(node)
        if SCHEMES[asked].weight == "int4" and signature.space != "tokens":
            asked = "int8"
        return fitting(asked, signature.features)

    def static_of(self, node: Node) -> Calibrated | None:
        """How the linear's input is quantized where that was calibrated."""
        return next(
            (self.static[part.weights[0]] for part in node.decompose() if part.weights[:1] and part.weights[0] in self.static),
            None,
        )

    def may_join(self, linears: tuple[Node, ...]) -> bool:
        """Whether linears of one input may become one: they look alike."""
        return len({(self.formats.get(node.weights[0]), self.static_of(node)) for node in linears}) == 1

    def check_pins(self, graph: Graph) -> None:
        """UsageError for a pin that names no linear of `graph`, whatever precision it gives."""
        linears = [node for node in graph.nodes if node.op.startswith("linear") or node.op == "qkv_attention"]
        for pattern, _ in self.pins:
            if not any(is_named(node, pattern) for node in linears):
                names = ", ".join(sorted(node.name for node in linears)[:8])
                raise UsageError(f"pin {pattern!r} names no linear layer; layers are named as {names}, …")


def is_named(node: Node, pattern: str) -> bool:
    """Whether `pattern` names the linear, a part of it, or the block of the layer that it belongs to (attention, mlp, first: the one
    that reads the layer's input; head)."""
    return any(
        fnmatchcase(alias, pattern)
        for name in (node.name, *(part.name for part in node.decompose()))
        for alias in _aliases(name)
    )


def _aliases(name: str) -> Iterator[str]:
    yield name
    layer, _, part = name.rpartition(".")
    for block in BLOCKS.get(part, ()):
        yield f"{layer}.{block}"
    if name == "logits":
        yield HEAD


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
