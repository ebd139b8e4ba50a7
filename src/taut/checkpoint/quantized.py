"""A quantized artefact seen as a checkpoint: each linear's weight under its own name and logical shape, read as the codes and scales that
it is stored as.

config.json's `quantization_config` has quant_method "taut", a version, the scheme, and `layers`: for each quantized tensor its scheme and,
where the input was calibrated, its scale and offset. Beside a tensor NAME stand, by its scheme:

    f32, f16, bf16   NAME (N, K) of that type
    int8, i8         NAME (N, K) int8 in [-127, 127]; NAME.scale (N,) float32, or (N, K / group) in groups
    int8 static      the same, and NAME.shifted_bias (N,) float32, the layer's bias
    smoothed         NAME (K,) of a norm's gain or bias, listed in `smoothed`; NAME.smooth (K,) float32, what linears read of it
    int4             NAME (N, K / 2) uint8, the even column in the low half; NAME.scale and NAME.offset (N, K / group) float16; NAME.column (N,)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint.tensors import TensorInfo, TensorSource
from taut.errors import ModelFormatError, UnsupportedModelError
from taut.quant.formats import SCHEMES
from taut.quant.schemes import int4, int8
from taut.quant.schemes.static import Calibrated

METHOD, VERSION = "taut", 1
CONFIG_KEY = "quantization_config"
FLOATS = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
SHIFTED, SMOOTH = ".shifted_bias", ".smooth"
MAX_LAYERS = 100_000


@dataclass(frozen=True)
class StoredLayer:
    """A linear's weight in an artefact: its scheme, and how its input is quantized where that was calibrated."""

    scheme: str
    static: Calibrated | None = None


@dataclass(frozen=True)
class Quantization:
    """What config.json says of an artefact: `layers` by the weight's tensor name, `kv` the KV cache's precision that it was judged with."""

    scheme: str
    layers: Mapping[str, StoredLayer]
    kv: str | None = None
    smoothed: tuple[str, ...] = ()  # norms' gains and biases of which linears read a divided twin

    def to_json(self) -> dict[str, Any]:
        """The `quantization_config`."""
        layers: dict[str, Any] = {}
        for name, layer in self.layers.items():
            layers[name] = {"scheme": layer.scheme}
            if layer.static is not None:
                layers[name] |= {"scale": layer.static.scale, "offset": layer.static.offset}
        stated = {"quant_method": METHOD, "version": VERSION, "scheme": self.scheme, "layers": layers}
        if self.smoothed:
            stated["smoothed"] = list(self.smoothed)
        return stated if self.kv is None else {**stated, "kv": self.kv}


def quantization_of(config: Mapping[str, Any]) -> Quantization | None:
    """What a config.json states; None where the model is not quantized. UnsupportedModelError for another method's or a newer version."""
    stated = config.get(CONFIG_KEY)
    if stated is None:
        return None
    if not isinstance(stated, dict) or stated.get("quant_method") != METHOD:
        method = stated.get("quant_method") if isinstance(stated, dict) else stated
        raise UnsupportedModelError(
            f"the model is quantized already, by {str(method)[:40]!r}; taut reads its own artefacts: give the unquantized model to `taut quantize`"
        )
    if stated.get("version") != VERSION:
        raise UnsupportedModelError(
            f"the artefact has format version {str(stated.get('version'))[:20]}, this taut reads {VERSION}; quantize the model again"
        )
    scheme, layers = stated.get("scheme"), stated.get("layers")
    if scheme not in SCHEMES or not isinstance(layers, dict) or not 0 < len(layers) <= MAX_LAYERS:
        raise _error("must state a scheme and its layers", CONFIG_KEY)
    kv = stated.get("kv")
    if kv is not None and not isinstance(kv, str):
        raise _error("is no text", f"{CONFIG_KEY}.kv")
    smoothed = stated.get("smoothed", [])
    if not isinstance(smoothed, list) or not all(isinstance(name, str) for name in smoothed) or len(smoothed) > MAX_LAYERS:
        raise _error("must be a list of tensor names", f"{CONFIG_KEY}.smoothed")
    return Quantization(scheme, {name: _layer(name, entry) for name, entry in layers.items()}, kv, tuple(smoothed))


def _layer(name: str, entry: object) -> StoredLayer:
    field = f"{CONFIG_KEY}.layers.{name[:120]}"
    if not isinstance(entry, dict) or entry.get("scheme") not in SCHEMES:
        raise _error(f"must state one of {', '.join(SCHEMES)}", field)
    if SCHEMES[entry["scheme"]].inputs != "static":
        return StoredLayer(entry["scheme"])
    with np.errstate(over="ignore"):
        scale, offset = (_float32(entry.get(name)) for name in ("scale", "offset"))
    if not 0 < scale < np.inf or not np.isfinite(offset):
        raise _error("must state a positive scale and an offset", field)
    return StoredLayer(entry["scheme"], Calibrated(scale, offset))


def _float32(value: object) -> float:
    """As the kernels take it; NaN for what is no number."""
    return float(np.float32(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")


def _error(message: str, field: str) -> ModelFormatError:
    return ModelFormatError(message, file="config.json", field=field)


class QuantizedTensors:
    """The tensors of `source` as `quantization` describes them; ModelFormatError for parts that are missing or do not fit."""

    def __init__(self, source: TensorSource, quantization: Quantization) -> None:
        self._source, self._layers = source, quantization.layers
        self.tensors: dict[str, TensorInfo] = dict(source.tensors)
        for name, layer in self._layers.items():
            self.tensors[name] = self._check(name, layer)
        listed = set(quantization.smoothed)
        if unlisted := sorted(name for name in source.tensors.keys() - listed if name + SMOOTH in source.tensors):
            raise ModelFormatError(f"has a smoothed twin, but {CONFIG_KEY}.smoothed does not list it", field=unlisted[0])
        for name in sorted(listed):
            twin = source.tensors.get(name + SMOOTH)
            if (
                name not in source.tensors
                or twin is None
                or twin.shape != source.tensors[name].shape
                or twin.dtype != "float32"
            ):
                raise ModelFormatError("is missing or of another shape; config.json lists it as smoothed", field=name + SMOOTH)
            self.tensors.pop(name + SMOOTH)

    def read(self, name: str) -> Any:
        """An array; int8.Quantized or int4.Quantized for a tensor that is quantized to integers."""
        layer = self._layers.get(name)
        if layer is None or SCHEMES[layer.scheme].weight in FLOATS:
            return self._source.read(name)
        parts = {suffix: self._source.read(name + suffix) for suffix in _parts(layer.scheme)}
        for suffix, part in parts.items():
            if suffix and not np.isfinite(part).all():
                raise ModelFormatError("holds NaN or infinite values; the artefact is damaged", field=name + suffix)
        if SCHEMES[layer.scheme].weight == "int4":
            return int4.Quantized(unpack_nibbles(parts[""]), parts[".scale"], parts[".offset"], parts[".column"])
        if parts[""].size and parts[""].min() < -int8.QMAX:
            raise ModelFormatError("holds -128; codes are from -127 to 127; the artefact is damaged", field=name)
        return int8.Quantized(parts[""], parts[".scale"])

    def identity(self) -> str:
        stated = sorted((name, layer.scheme) for name, layer in self._layers.items())
        return f"{self._source.identity()} {stated}"

    def release_pages(self) -> None:
        self._source.release_pages()

    def close(self) -> None:
        self._source.close()

    def _check(self, name: str, layer: StoredLayer) -> TensorInfo:
        """The logical tensor; its parts leave the list."""
        found = self._source.tensors
        if name not in found or len(found[name].shape) != 2:
            raise ModelFormatError("is missing or no matrix; config.json states its scheme", field=name)
        n, columns = found[name].shape
        format_ = SCHEMES[layer.scheme]
        k = 2 * columns if format_.weight == "int4" else columns
        if format_.group and k % format_.group:
            raise ModelFormatError(f"has {k} inputs, no whole groups of {format_.group}", field=name)
        shapes: dict[str, tuple[tuple[int, ...], str]] = {}
        if format_.weight in FLOATS:
            shapes[""] = ((n, k), FLOATS[format_.weight])
        elif format_.weight == "int4":
            groups = (n, k // format_.group)
            shapes = {
                "": ((n, k // 2), "uint8"),
                ".scale": (groups, "float16"),
                ".offset": (groups, "float16"),
                ".column": ((n,), "float32"),
            }
        else:
            scales = (n, k // format_.group) if format_.group else (n,)
            shapes = {"": ((n, k), "int8"), ".scale": (scales, "float32")}
        if layer.static is not None:
            shapes[SHIFTED] = ((n,), "float32")
        nbytes = 0
        for suffix, (shape, dtype) in shapes.items():
            part = found.get(name + suffix)
            if part is None or part.shape != shape or part.dtype != dtype:
                have = "is missing" if part is None else f"is {part.dtype} {list(part.shape)}"
                raise ModelFormatError(f"{have}; {layer.scheme} needs {dtype} {list(shape)}", field=name + suffix)
            nbytes += part.nbytes
            if suffix:
                self.tensors.pop(name + suffix)
        return TensorInfo((n, k), format_.weight, nbytes)


def _parts(scheme: str) -> tuple[str, ...]:
    return ("", ".scale", ".offset", ".column") if SCHEMES[scheme].weight == "int4" else ("", ".scale")


def pack_nibbles(u: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(N, K) of [0, 15] → (N, K / 2), even columns in the low halves."""
    packed: NDArray[np.uint8] = u[:, 0::2] | (u[:, 1::2] << np.uint8(4))
    return packed


def unpack_nibbles(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The inverse of pack_nibbles."""
    u = np.empty((packed.shape[0], 2 * packed.shape[1]), np.uint8)
    u[:, 0::2], u[:, 1::2] = packed & 15, packed >> 4
    return u
