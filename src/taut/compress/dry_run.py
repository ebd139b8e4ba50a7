"""plan: what quantize would make of a model, layer by layer, without writing anything.

Bytes are exact. The error is that of rounding to nearest, ||w - ŵ||² / ||w||²: what the chosen algorithm has to better. Times are the
floors of this machine: the weight's bytes at the bandwidth (decode), its multiply-adds at the rate of its inputs (prefill).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taut import checkpoint as checkpoints
from taut import models
from taut.bench.limits import Limits
from taut.checkpoint.tensors import SAFETENSORS_DTYPES
from taut.compress.layers import Layer, layers_of
from taut.compress.recipe import Recipe
from taut.compress.tensor_file import NAMES
from taut.compress.weights import entries, relative_error
from taut.errors import UsageError
from taut.loading import Progress
from taut.quant import algorithms
from taut.quant.formats import SCHEMES

FP32_BYTES = 4


@dataclass(frozen=True)
class PlannedLayer:
    """One linear. bytes_before: in fp32; decode_us and prefill_us: of one token, at this machine's limits; None without limits."""

    layer: Layer
    bytes_before: int
    bytes_after: int
    error: float
    decode_us: float | None
    prefill_us: float | None


def plan(
    ref: str, recipe: Recipe, *, limits: Limits | None = None, errors: bool = True, progress: Progress | None = None
) -> list[PlannedLayer]:
    """Every linear of the model. With `errors` False the weights are not read, and the errors are 0."""
    found = []
    with checkpoints.open(ref, with_text=False) as checkpoint:
        if checkpoint.quantization is not None:
            raise UsageError(
                f"{checkpoint.name} is quantized already, to {checkpoint.quantization.scheme}: `taut inspect` shows its layers"
            )
        layers = layers_of(models.build(checkpoint), recipe)
        for done, layer in enumerate(layers):
            if progress:
                progress("plan", done, len(layers))
            error = 0.0
            if errors and SCHEMES[layer.scheme].weight != "f32":
                weight = np.asarray(checkpoint.read(layer.tensor), np.float32)
                error = relative_error(algorithms.quantize(weight, layer.scheme, name=layer.tensor), weight)
                checkpoint.source.release_pages()
            found.append(_planned(layer, error, limits))
        if progress:
            progress("plan", len(layers), len(layers))
    return found


def _planned(layer: Layer, error: float, limits: Limits | None) -> PlannedLayer:
    macs = layer.shape[0] * layer.shape[1]
    after = sum(
        int(np.prod(shape)) * SAFETENSORS_DTYPES[NAMES[dtype]].itemsize for _, dtype, shape in entries(layer, shifted=False)
    )
    if limits is None:
        return PlannedLayer(layer, FP32_BYTES * macs, after, error, None, None)
    rate = limits.fp32_tflops if SCHEMES[layer.scheme].inputs == "float" else limits.int8_tops
    return PlannedLayer(layer, FP32_BYTES * macs, after, error, after / limits.read_gb_s / 1e3, 2 * macs / rate / 1e6)
