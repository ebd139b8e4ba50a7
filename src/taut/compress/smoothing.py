"""SmoothQuant over a model: for each norm that only linears read, the powers of two that its result is divided by and the weights' columns
are multiplied with (Xiao et al. 2022; here folded exactly)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taut.compress.calibrate import Calibration
from taut.compress.layers import Layer
from taut.loading import Progress
from taut.quant.algorithms import smoothquant
from taut.quant.formats import SCHEMES

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Smoothing:
    """`scales` (K,) by norm, powers of two; `alphas`: the migration strength that was found best, 0 where none helped."""

    scales: Mapping[str, F32] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)

    def of_norm(self, norm: str) -> F32 | None:
        """What the norm's gain and bias are divided by."""
        return self.scales.get(norm)

    def scaled(self, layer: Layer, weight: F32) -> F32:
        scale = self.scales.get(layer.norm) if layer.norm is not None else None
        return weight if scale is None else weight * scale

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for norm in sorted(self.scales):
            digest.update(norm.encode() + self.scales[norm].tobytes())
        return digest.hexdigest()


NONE = Smoothing()


def find(
    layers: list[Layer], calibration: Calibration, weight: Callable[[Layer], F32], progress: Progress | None = None
) -> Smoothing:
    """The smoothing of every norm whose readers have quantized inputs, by the error of their outputs on the calibration's samples."""
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.norm is not None:
            groups.setdefault(layer.norm, []).append(layer)
    scales: dict[str, F32] = {}
    alphas: dict[str, float] = {}
    for done, (norm, readers) in enumerate(groups.items()):
        if progress:
            progress("smooth", done, len(groups))
        if any(SCHEMES[reader.scheme].inputs == "float" for reader in readers):
            continue
        statistics = calibration.statistics[readers[0].name]
        found = smoothquant.search(
            statistics.channel_absmax(sinks=False),
            statistics.sample(),
            [weight(reader) for reader in readers],
            readers[0].scheme,
        )
        alphas[norm] = found.alpha
        if found.alpha:
            scales[norm] = found.scale
    if progress:
        progress("smooth", len(groups), len(groups))
    return Smoothing(scales, alphas)
