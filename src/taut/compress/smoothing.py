"""SmoothQuant over a model (Xiao et al. 2022, arXiv 2211.10438), folded exactly: what makes a linear's input is divided by powers of two,
channel by channel, and the columns of the weights that read it are multiplied with them.

    norm → q, k, v; norm → gate, up; final norm → head     the norm's gain and bias are divided; where a residual reads the norm too (an
                                                           encoder's), those of a twin that only the linears read (passes/split_norms.py)
    up → down                                              up's rows: the gate's product passes the division on
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from taut.compress.calibration import Calibration
from taut.compress.layers import Layer
from taut.loading import Progress
from taut.quant.algorithms import smoothquant
from taut.quant.formats import SCHEMES

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class Smoothing:
    """`scales` by the name of what is divided, (its channels,), powers of two; `alphas`: the migration strength that was found best, 0 where
    none helped."""

    scales: Mapping[str, F32] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    split: frozenset[str] = frozenset()  # of the sources: norms that others read too, which get a divided twin

    def of_source(self, name: str) -> F32 | None:
        """What the gain and bias of the norm, or the rows and bias of the linear, are divided by."""
        return None if name in self.split else self.scales.get(name)

    def of_twin(self, name: str) -> F32 | None:
        """What the gain and bias of the norm's twin are divided by."""
        return self.scales.get(name) if name in self.split else None

    def of_input(self, layer: Layer) -> F32 | None:
        """(K,) What the layer's input is divided by."""
        return None if layer.source is None else self.scales.get(layer.source)

    def scaled(self, layer: Layer, weight: F32) -> F32:
        """The layer's weight (N, K) between a divided input and, where it is one, its own division."""
        inputs, outputs = self.of_input(layer), self.scales.get(layer.name)
        if inputs is not None:
            weight = weight * inputs
        return weight if outputs is None else weight / outputs[:, None]

    @property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.scales):
            digest.update(name.encode() + self.scales[name].tobytes())
        return digest.hexdigest()


NONE = Smoothing()


def find(
    layers: list[Layer], calibration: Calibration, weight: Callable[[Layer], F32], progress: Progress | None = None
) -> Smoothing:
    """The smoothing of every source whose readers have quantized inputs, by the error of their outputs on the calibration's samples."""
    by_name = {layer.name: layer for layer in layers}
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        if layer.source is not None:
            groups.setdefault(layer.source, []).append(layer)
    scales: dict[str, F32] = {}
    split: set[str] = set()
    alphas: dict[str, float] = {}
    for done, (source, readers) in enumerate(groups.items()):
        if progress:
            progress("smooth", done, len(groups))
        if any(SCHEMES[reader.scheme].inputs == "float" for reader in readers):
            continue
        if source in by_name and SCHEMES[by_name[source].scheme].weight in ("f16", "bf16"):
            continue  # its rows are rounded to 16 bits, where a division is not always exact
        statistics = calibration.statistics[readers[0].name]
        # The first tokens of a sequence count: their activations are the largest, and all other tokens attend to them.
        found = smoothquant.search(
            statistics.channel_absmax(), statistics.sample(), [weight(reader) for reader in readers], readers[0].scheme
        )
        alphas[source] = found.alpha
        if found.alpha:
            scales[source] = found.scale
            if readers[0].splits:
                split.add(source)
    if progress:
        progress("smooth", len(groups), len(groups))
    return Smoothing(scales, alphas, frozenset(split))
