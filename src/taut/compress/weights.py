"""One tensor of the model as it goes into the artefact: smoothed, quantized, with its parts, digest and error."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.checkpoint.quantized import SHIFTED, pack_nibbles
from taut.compress.layers import Layer
from taut.compress.tensor_file import Entry
from taut.quant.formats import SCHEMES
from taut.quant.schemes import int4, int8
from taut.quant.schemes.static import Calibrated, shifted_bias

Array = NDArray[Any]
FLOATS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ROWS_AT_ONCE = 4096  # of a weight whose error is measured


@dataclass(frozen=True)
class Packed:
    """A quantized weight as the artefact holds it: arrays by the suffix of their name. `error`: ||w - ŵ||² / ||w||²."""

    parts: dict[str, Array]
    error: float
    digest: str


def entries(layer: Layer, *, shifted: bool) -> list[Entry]:
    """Names, types and shapes of the parts of a layer's weight."""
    (n, k), format_ = layer.shape, SCHEMES[layer.scheme]
    name = layer.tensor
    if format_.weight in FLOATS:
        found: list[Entry] = [(name, np.dtype(FLOATS[format_.weight]).name, (n, k))]
    elif format_.weight == "int4":
        groups = (n, k // format_.group)
        found = [(name, "uint8", (n, k // 2)), (f"{name}.scale", "float16", groups), (f"{name}.offset", "float16", groups)]
        found.append((f"{name}.column", "float32", (n,)))
    else:
        found = [(name, "int8", (n, k)), (f"{name}.scale", "float32", (n, k // format_.group) if format_.group else (n,))]
    return [*found, (name + SHIFTED, "float32", (n,))] if shifted else found


def packed(
    weight: Any, original: Array, *, bias: NDArray[np.float32] | None = None, static: Calibrated | None = None
) -> Packed:
    """The parts of `weight` (int8.Quantized, int4.Quantized or a float array), compared with what it stands for. `bias`: the layer's own,
    which a calibrated input shifts."""
    if isinstance(weight, int8.Quantized):
        parts: dict[str, Array] = {"": weight.q, ".scale": weight.scale}
        if static is not None:
            parts[SHIFTED] = shifted_bias(weight, bias, static)
    elif isinstance(weight, int4.Quantized):
        parts = {"": pack_nibbles(weight.u), ".scale": weight.scale, ".offset": weight.offset, ".column": weight.column}
    else:
        parts = {"": weight}
    digest = hashlib.blake2b(digest_size=16)
    for part in parts.values():
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return Packed(parts, relative_error(weight, original), digest.hexdigest())


def relative_error(weight: Any, original: Array) -> float:
    """||w - ŵ||² / ||w||², row block by row block."""
    lost = total = 0.0
    for begin in range(0, len(original), ROWS_AT_ONCE):
        rows = slice(begin, begin + ROWS_AT_ONCE)
        true = np.asarray(original[rows], np.float32)
        made = dequantized(weight, rows)
        lost += float(np.sum(np.square(true - made), dtype=np.float64))
        total += float(np.sum(np.square(true), dtype=np.float64))
    return lost / total if total else 0.0


def dequantized(weight: Any, rows: slice) -> NDArray[np.float32]:
    """Rows of what a quantized weight stands for."""
    if isinstance(weight, int8.Quantized):
        return weight.rows(rows).dequantized()
    if isinstance(weight, int4.Quantized):
        return int4.dequantize(weight.rows(rows))
    wide: NDArray[np.float32] = np.asarray(weight[rows], np.float32)
    return wide
