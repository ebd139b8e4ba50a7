"""The operations of the graph, one file each: signature, shape rule and numpy reference.

An op's module is named like the op and exports

    infer(inputs, weights, attrs) -> list[Signature]      shapes of the outputs, or an error naming what does not fit
    run(inputs, weights, attrs, context) -> list[array]   the reference: float32 in and out, float64 inside

The reference is the specification: native kernels are compared with it, never with each other alone.
"""

from __future__ import annotations

from taut.ops.base import Attrs, Context, OpModule, Signature, find

__all__ = ["Attrs", "Context", "OpModule", "Signature", "find"]
