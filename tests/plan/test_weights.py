"""Packing: fused weights are found again, tied ones exist once, damaged ones are refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from builders import graphs
from taut import passes
from taut.engine.kv_cache import aligned_bytes
from taut.errors import ModelFormatError
from taut.graph import Graph
from taut.plan.weights import WeightStore, floats_shape, load, pack_floats, store_bytes, unpack_floats
from taut.quant.schemes import int4, int8


class Source:
    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    def read(self, key: str) -> np.ndarray:
        return self.tensors[key]

    def release(self) -> None: ...


def packed(
    precision: str, tensors: dict[str, np.ndarray] | None = None, family: str = "llama"
) -> tuple[Graph, WeightStore, dict[str, np.ndarray]]:
    plain = graphs()[family]
    rng = np.random.default_rng(0)
    tensors = tensors or {key: rng.normal(size=weight.shape).astype(np.float32) for key, weight in plain.weights.items()}
    graph = passes.optimize(plain, passes.Options(precision))  # type: ignore[arg-type]
    return graph, load(graph, Source(tensors), aligned_bytes), tensors


@pytest.mark.parametrize("family", ["llama", "qwen3", "bert"])
def test_fused_fp32_weights_come_back(family: str) -> None:
    _, store, tensors = packed("fp32", family=family)
    for key, w in tensors.items():
        np.testing.assert_array_equal(store.logical(key, w.shape), w, err_msg=key)


def test_fused_int8_weights_equal_those_quantized_alone() -> None:
    _, store, tensors = packed("int8")
    for name in ("q", "k", "v", "gate", "up", "down"):
        w = tensors[f"layers.1.{name}.weight"]
        for got, want in zip(store.logical(f"layers.1.{name}.weight", w.shape), int8.quantize_weight(w), strict=True):
            np.testing.assert_array_equal(got, want, err_msg=name)


def test_fused_int4_weights_equal_those_quantized_alone() -> None:
    graph, store, tensors = packed("int4-g32")
    for name in ("q", "k", "v", "gate", "up", "down"):
        w = tensors[f"layers.1.{name}.weight"]
        got, want = store.logical(f"layers.1.{name}.weight", w.shape), int4.quantize_weight(w, 32)
        for field in ("u", "scale", "offset", "column"):
            np.testing.assert_array_equal(getattr(got, field), getattr(want, field), err_msg=f"{name} {field}")
    assert store.nbytes <= store_bytes(graph) < 0.9 * store_bytes(packed("int8")[0])


def test_tied_embedding_is_one_copy() -> None:
    graph, store, tensors = packed("int8")
    assert store["embed.weight"].kind == "q8" and "head.weight" not in set(store)
    total = sum(w.size for w in tensors.values())
    assert total < store.nbytes <= store_bytes(graph) < 1.6 * total, "about a byte a weight, padding and scales included"


def test_addresses_are_aligned() -> None:
    _, store, _ = packed("int8")
    for key in store:
        assert store[key].data.ctypes.data % 128 == 0


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8", "int4-g32"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_damaged_weights_are_refused(precision: str, bad: float) -> None:
    _, _, tensors = packed("fp32")
    for key in ("layers.0.attention_norm.weight", "layers.1.o.weight"):
        hurt = {**tensors, key: tensors[key].copy()}
        hurt[key].flat[3] = bad
        with pytest.raises(ModelFormatError, match="NaN or infinite"):
            packed(precision, hurt)


def test_a_weight_beyond_float16_is_refused_and_bf16_takes_it() -> None:
    _, _, tensors = packed("fp32")
    tensors["layers.1.o.weight"].flat[3] = -70000
    with pytest.raises(ModelFormatError, match=r"70000 is beyond float16; use precision bf16 or fp32"):
        packed("fp16", tensors)
    _, store, _ = packed("bf16", tensors)
    w = tensors["layers.1.o.weight"]
    np.testing.assert_allclose(store.logical("layers.1.o.weight", w.shape), w, rtol=2**-8)


def test_pack_floats_round_trip_with_padding() -> None:
    w = np.random.default_rng(0).normal(size=(100, 7)).astype(np.float32)
    panels = np.full((2, 7, 64), 9, np.float32)
    pack_floats(w, panels)
    np.testing.assert_array_equal(unpack_floats(panels, *w.shape), w)
    assert not panels[1, :, 36:].any()


def test_bf16_weights_lie_in_pairs_of_inputs() -> None:
    w = np.arange(70 * 5, dtype=np.float32).reshape(70, 5) % 128
    panels = np.full(floats_shape("bf16", w.shape), 9, ml_dtypes.bfloat16)
    pack_floats(w, panels)
    assert panels.shape == (2, 3, 64, 2)
    np.testing.assert_array_equal(panels[1, 1, 5].astype(np.float32), w[69, 2:4])
    assert panels[1, 2, 5, 1] == 0 and not panels[1, :, 6:].astype(np.float32).any(), "padding"
    np.testing.assert_array_equal(unpack_floats(panels, *w.shape), w)


def test_16_bit_weights_are_rounded_to_nearest_even_and_take_half_the_bytes() -> None:
    w = np.array([[1 + 2**-11, 1 + 3 * 2**-11, 2.0**-25, 65519]], np.float32)
    panels = np.zeros((1, 4, 64), np.float16)
    pack_floats(w, panels)
    np.testing.assert_array_equal(unpack_floats(panels, *w.shape), np.array([[1, 1 + 2**-9, 0, 65504]], np.float32))
    wide, narrow = packed("fp32")[1], packed("fp16")[1]
    linears = [key for key in wide if wide[key].kind == "f32"]
    assert linears and all(2 * narrow[key].nbytes == wide[key].nbytes for key in linears)
