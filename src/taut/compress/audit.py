"""Before layers become fp16: which of them float16 would not hold, or hardly. Those become bf16, and the receipt says why."""

from __future__ import annotations

from dataclasses import replace

from taut import api
from taut.compress.layers import Layer
from taut.quality import ranges


def audited(ref: str, layers: list[Layer], threads: int | None) -> list[Layer]:
    """`layers`, those fp16 ones whose weights, inputs or outputs leave float16's range on a self-test as bf16."""
    if not any(layer.scheme == "fp16" for layer in layers):
        return layers
    model = api.load(ref, precision="fp32", threads=threads)
    try:
        found = ranges.self_test(model.loaded)
    finally:
        model.close()
    loud = {pin.rpartition("=")[0] for pin in ranges.overflowing(found)}
    units = {layer.unit for layer in layers if layer.name in loud or layer.unit in loud}
    reason = f"float16 ends at 65504: a value of the layer comes near {ranges.VALUE_MARGIN:g} or a weight beyond"
    return [
        replace(layer, scheme="bf16", reason=reason) if layer.unit in units and layer.scheme == "fp16" else layer
        for layer in layers
    ]
