"""THE ordered list of passes: one line and one reason each."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

from taut.errors import UsageError
from taut.graph import Graph, verify
from taut.passes.options import NEEDS_CALIBRATION, Options
from taut.quant.formats import SCHEMES

__all__ = ["PIPELINE", "Options", "Pass", "is_run", "optimize"]

PIPELINE: tuple[tuple[str, str], ...] = (
    ("shift_bias", "a linear's bias makes up for the offset of its calibrated input"),
    ("split_norms", "linears read a smoothed norm, the residual the norm itself"),
    ("fuse_qkv", "one GEMM reads the normalized rows once for queries, keys and values"),
    ("fuse_gate_up", "one GEMM for both MLP inputs, and their product in one sweep"),
    ("fuse_bias_act", "the activation is applied in the GEMM's epilogue, on registers"),
    ("fuse_rope_cache", "rotation and the cache's write while the row tile is in L1"),
    ("quantize", "linears on int8 or int4 weights and int8 activations"),
    ("narrow_weights", "linears on weights of 16 or 8 bits and float inputs (fp16, bf16, w8a16)"),
    (
        "guard",
        "on the way to numbers of 16 bits, norms and attention scores stay in float16's range, and what would not is counted",
    ),
    ("fuse_qkv_attention", "encoders: q, k and v of a few heads stay in a core's cache until they are attended to"),
    ("fuse_gate", "gate times up in the epilogue: nothing of twice the MLP's width is written"),
    ("fuse_requantize", "a linear's result goes to int8 rows from registers"),
    ("fuse_residual", "the residual is added in the epilogue"),
    ("fuse_add_norm", "the residual sum and its norm in one sweep over the row"),
    ("fuse_norm_quant", "norms and gates write the quantized row directly"),
    ("remove_dead", "nothing is computed that nobody reads"),
)

# Passes that make a precision; the others run for every one.
INTEGER = tuple(name for name, format_ in SCHEMES.items() if format_.inputs != "float")
ONLY_FOR: dict[str, tuple[str, ...]] = {
    "shift_bias": NEEDS_CALIBRATION,
    "quantize": INTEGER,
    "narrow_weights": ("fp16", "bf16", "w8a16"),
    "fuse_qkv_attention": INTEGER,
    "fuse_gate": INTEGER,
    "fuse_requantize": INTEGER,
    "fuse_residual": INTEGER,
}


class Pass(Protocol):
    """`requires` and `ensures` assert what must hold of the graph before and after `run`."""

    def requires(self, graph: Graph) -> None: ...

    def run(self, graph: Graph, options: Options) -> Graph: ...

    def ensures(self, graph: Graph) -> None: ...


def is_run(name: str, options: Options) -> bool:
    """Whether the pass of this name runs under `options`."""
    if name == "split_norms" and not options.smoothed:
        return False
    return name not in options.disabled and not options.precisions.isdisjoint(ONLY_FOR.get(name, options.precisions))


def optimize(graph: Graph, options: Options) -> Graph:
    """Run every pass that is not disabled; the graph is verified after each."""
    names = [name for name, _ in PIPELINE]
    if unknown := sorted(set(options.disabled) - set(names)):
        raise UsageError(f"no pass named {', '.join(unknown)}; passes: {', '.join(names)}")
    for name in names:
        if is_run(name, options):
            step = cast(Pass, importlib.import_module(f"taut.passes.{name}"))
            step.requires(graph)
            graph = verify(step.run(graph, options))
            step.ensures(graph)
    options.check_pins(graph)
    return graph
