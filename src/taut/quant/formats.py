"""What a linear layer's weight and input look like: the formats, and the schemes that users name.

A scheme says how numbers look; which numbers are chosen is an algorithm's matter (quant/algorithms). Pure facts, no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from taut.quant.schemes import int4, int8

Inputs = Literal["float", "dynamic", "static"]


@dataclass(frozen=True)
class Format:
    """One linear layer's numbers.

    weight: f32, f16, bf16; i8 (int8 by output channel, multiplied in fp32); int8 (by output channel, or in groups of `group` inputs);
    int4 (groups of `group` inputs, scale and minimum). inputs: float; dynamic (int8 in groups, or by token, at run time); static (int8
    with a scale and zero point from calibration, one for the whole tensor).
    """

    weight: Literal["f32", "f16", "bf16", "i8", "int8", "int4"]
    inputs: Inputs = "float"
    group: int = 0


SCHEMES: dict[str, Format] = {
    "fp32": Format("f32"),
    "bf16": Format("bf16"),
    "fp16": Format("f16"),
    "w8a16": Format("i8"),
    "int8": Format("int8", "dynamic"),
    "int8-g64": Format("int8", "dynamic", 64),
    "int8-static": Format("int8", "static"),
    "int4-g128": Format("int4", "dynamic", 128),
    "int4-g64": Format("int4", "dynamic", 64),
    "int4-g32": Format("int4", "dynamic", 32),
}


def fitting(scheme: str, k: int) -> str:
    """The scheme that a linear of K inputs gets when `scheme` is asked for: groups shrink until they divide K; where none does, int8."""
    format_ = SCHEMES[scheme]
    if not format_.group:
        return scheme
    if format_.weight == "int4":
        group = int4.group_for(k, format_.group)
        return f"int4-g{group}" if group else "int8"
    return scheme if k % format_.group == 0 else "int8"


def input_group(scheme: str, k: int) -> int:
    """Inputs that share a scale of the quantized activations of a linear of K inputs (0: the whole row)."""
    format_ = SCHEMES[scheme]
    if format_.inputs == "static":
        return 0
    return format_.group or int8.default_group(k)
