"""An artefact's tensors as a checkpoint: every fault of the files is one clear error, before anything is allocated on their word."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from taut.checkpoint.quantized import QuantizedTensors, pack_nibbles, quantization_of, unpack_nibbles
from taut.checkpoint.tensors import TensorInfo
from taut.errors import ModelError, ModelFormatError, UnsupportedModelError
from taut.quant.schemes import int4, int8

pytestmark = pytest.mark.fast
W = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)


class Source:
    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self.arrays = dict(arrays)

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        return {name: TensorInfo(array.shape, array.dtype.name, array.nbytes) for name, array in self.arrays.items()}

    def read(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def identity(self) -> str:
        return "files"

    def release_pages(self) -> None: ...

    def close(self) -> None: ...


def artefact() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    a, b, c = int8.quantize_groups(W, 0), int8.quantize_groups(W, 64), int4.quantize_weight(W, 32)
    config = {
        "quantization_config": {
            "quant_method": "taut", "version": 1, "scheme": "int8",
            "layers": {
                "a": {"scheme": "int8-static", "scale": 0.5, "offset": -1.0}, "b": {"scheme": "int8-g64"}, "c": {"scheme": "int4-g32"},
                "d": {"scheme": "fp16"},
            },
            "smoothed": ["norm"],
        }
    }  # fmt: skip
    arrays = {
        "a": a.q, "a.scale": a.scale, "a.shifted_bias": np.zeros(6, np.float32), "b": b.q, "b.scale": b.scale,
        "c": pack_nibbles(c.u), "c.scale": c.scale, "c.offset": c.offset, "c.column": c.column, "d": W.astype(np.float16), "norm": W[0],
        "norm.smooth": W[0] / 2,
    }  # fmt: skip
    return config, arrays


def opened(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> QuantizedTensors:
    quantization = quantization_of(config)
    assert quantization is not None
    return QuantizedTensors(Source(arrays), quantization)


def test_weights_come_back_as_they_were_quantized() -> None:
    tensors = opened(*artefact())
    assert set(tensors.tensors) == {"a", "b", "c", "d", "norm"}
    assert {tensors.tensors[name].shape for name in "abcd"} == {W.shape}
    np.testing.assert_array_equal(tensors.read("b").dequantized(), int8.quantize_groups(W, 64).dequantized())
    np.testing.assert_array_equal(int4.dequantize(tensors.read("c")), int4.dequantize(int4.quantize_weight(W, 32)))
    assert tensors.read("a").group == 0 and tensors.read("d").dtype == np.float16


def test_nibbles_round_trip() -> None:
    u = np.arange(64, dtype=np.uint8).reshape(4, 16) % 16
    np.testing.assert_array_equal(unpack_nibbles(pack_nibbles(u)), u)
    assert pack_nibbles(u)[0, 0] == 0x10, "the even column lies in the low half"


FAULTS: dict[str, Any] = {
    "no scale": lambda c, a: a.pop("b.scale"),
    "transposed scale": lambda c, a: a.update({"c.scale": a["c.scale"].T.copy()}),
    "scale of another type": lambda c, a: a.update({"b.scale": a["b.scale"].astype(np.float64)}),
    "codes of another type": lambda c, a: a.update({"a": a["a"].astype(np.float32)}),
    "no bias": lambda c, a: a.pop("a.shifted_bias"),
    "no tensor": lambda c, a: a.pop("c"),
    "a vector": lambda c, a: a.update({"b": a["b"][0]}),
    "unknown scheme": lambda c, a: c["layers"]["b"].update(scheme="int3"),
    "group that divides nothing": lambda c, a: a.update({"b": a["b"][:, :50].copy()}),
    "no layers": lambda c, a: c.update(layers={}),
    "layers are a list": lambda c, a: c.update(layers=["a"]),
    "no range": lambda c, a: c["layers"]["a"].pop("scale"),
    "negative scale": lambda c, a: c["layers"]["a"].update(scale=-1.0),
    "scale too small for float32": lambda c, a: c["layers"]["a"].update(scale=1e-60),
    "scale is no number": lambda c, a: c["layers"]["a"].update(scale=True),
    "offset is infinite": lambda c, a: c["layers"]["a"].update(offset=1e60),
    "no twin": lambda c, a: a.pop("norm.smooth"),
    "twin of another shape": lambda c, a: a.update({"norm.smooth": W[0, :5]}),
    "smoothed is a text": lambda c, a: c.update(smoothed="norm"),
    "smoothed names nothing": lambda c, a: c.update(smoothed=["nothing"]),
    "a twin that is not listed": lambda c, a: c.pop("smoothed"),
    "kv is a number": lambda c, a: c.update(kv=3),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_a_clear_error(fault: str) -> None:
    config, arrays = copy.deepcopy(artefact())
    FAULTS[fault](config["quantization_config"], arrays)
    with pytest.raises(ModelError):
        opened(config, arrays)


def test_a_norm_listed_twice_is_read_once() -> None:
    config, arrays = artefact()
    config["quantization_config"]["smoothed"] *= 2
    assert "norm.smooth" not in opened(config, arrays).tensors


@pytest.mark.parametrize(
    ("name", "value"), [("b.scale", np.float32(np.nan)), ("c.offset", np.float16(np.inf)), ("c.column", np.float32(np.inf))]
)
def test_scales_must_be_finite(name: str, value: Any) -> None:
    config, arrays = artefact()
    arrays[name] = arrays[name].copy()
    arrays[name].reshape(-1)[0] = value
    with pytest.raises(ModelFormatError, match="damaged"):
        opened(config, arrays).read(name[0])


def test_the_code_that_no_kernel_takes_is_refused() -> None:
    config, arrays = artefact()
    arrays["a"] = arrays["a"].copy()
    arrays["a"][0, 0] = -128
    with pytest.raises(ModelFormatError, match="-128"):
        opened(config, arrays).read("a")


@pytest.mark.parametrize(("method", "version"), [("gptq", 1), (None, 1), ("taut", 2), ("taut", None)])
def test_other_methods_and_versions_are_named(method: Any, version: Any) -> None:
    config, _ = artefact()
    config["quantization_config"] |= {"quant_method": method, "version": version}
    with pytest.raises(UnsupportedModelError, match=r"quantiz"):
        quantization_of(config)
    assert quantization_of({}) is None
