"""Packing: fused weights are found again, tied ones exist once, damaged ones are refused."""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest

from builders import graphs
from taut import passes
from taut.engine.kv_cache import aligned_bytes
from taut.errors import ModelFormatError
from taut.graph import Graph, Node
from taut.plan.packing import FLOATS, floats, layout, pack_floats, unpack_floats
from taut.plan.weights import WeightStore, kinds, load, packed_bytes, store_bytes
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
    panels = np.full(layout("bf16", w.shape).shape, 9, ml_dtypes.bfloat16)
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


# Weights that are quantized already


def changed(family: str, kind: str) -> Graph:
    """A graph of the family whose int8 linears (or fp32 ones, for i8) take another kind of weight."""
    if kind.startswith("q4"):
        return passes.optimize(graphs()[family], passes.Options(f"int4-{kind[2:]}"))  # type: ignore[arg-type]
    graph = passes.optimize(graphs()[family], passes.Options("fp32" if kind == "i8" else "int8", (), 32))
    own = {"store": "i8"} if kind == "i8" else {"weight_group": 32} if kind == "q8g32" else {}

    def take(node: Node) -> Node:
        attrs = {**node.attrs, **(own if node.op.startswith("linear") or node.op == "qkv_attention" else {})}
        return replace(node, attrs=MappingProxyType(attrs), origin=tuple(take(part) for part in node.origin))

    return graph.rebuilt(take(node) for node in graph.nodes)


def quantized(kind: str, w: np.ndarray) -> int8.Quantized | int4.Quantized:
    """With numbers that quantizing again would not give: one step away from the best."""
    if kind.startswith("q4"):
        found = int4.quantize_weight(w, 32)
        return replace(found, u=found.u ^ 1)
    found8 = int8.quantize_groups(w, 32 if kind == "q8g32" else 0)
    return replace(found8, q=np.where(found8.q > 100, found8.q - 1, found8.q).astype(np.int8))


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("kind", ["q8", "q8g32", "i8", "q4g32"])
def test_quantized_weights_are_packed_as_they_are(family: str, kind: str) -> None:
    graph = changed(family, kind)
    rng = np.random.default_rng(0)
    plain = {key: rng.normal(size=w.shape).astype(np.float32) for key, w in graphs()[family].weights.items()}
    linears = {key for key, own in kinds(graph).items() if own == kind}
    names = {part for key in linears for part in (graph.weights[key].sources or (key,))}
    assert len(names) >= 8 and any(graph.weights[key].interleave for key in linears) == (kind != "i8")
    stored = {key: quantized(kind, w) if key in names else w for key, w in plain.items()}
    store = load(graph, Source(stored), aligned_bytes)  # type: ignore[arg-type]
    for key in names:
        got, want = store.logical(key, plain[key].shape), stored[key]
        got = got if kind.startswith("q4") else int8.Quantized(*got)
        for field in fields(want):  # type: ignore[arg-type]
            np.testing.assert_array_equal(getattr(got, field.name), getattr(want, field.name), err_msg=f"{key} {field.name}")
    assert any(not np.array_equal(floats(stored[key]), floats(quantize_again(kind, stored[key]))) for key in names), "a copy"


def quantize_again(kind: str, w: object) -> object:
    return int4.quantize_weight(floats(w), 32) if kind.startswith("q4") else int8.quantize_groups(floats(w), w.group)  # type: ignore


def test_parts_of_floats_beside_quantized_ones() -> None:
    """One fused weight: a part that was quantized before, the others now."""
    graph = changed("llama", "q8g32")
    rng = np.random.default_rng(0)
    plain = {key: rng.normal(size=w.shape).astype(np.float32) for key, w in graphs()["llama"].weights.items()}
    key, other = "layers.1.up.weight", "layers.1.gate.weight"
    stored = {**plain, key: quantized("q8g32", plain[key])}
    store = load(graph, Source(stored), aligned_bytes)  # type: ignore[arg-type]
    np.testing.assert_array_equal(store.logical(key, plain[key].shape)[0], stored[key].q)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(store.logical(other, plain[other].shape)[0], int8.quantize_groups(plain[other], 32).q)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", ["q8", "q4g32"])
def test_float_kinds_take_the_numbers_of_quantized_weights(precision: str, kind: str) -> None:
    _, _, tensors = packed("fp32")
    key = "layers.1.o.weight"
    stored = {**tensors, key: quantized(kind, tensors[key])}
    _, store, _ = packed(precision, stored)  # type: ignore[arg-type]
    rtol = {"fp32": 0, "fp16": 2**-11, "bf16": 2**-8}[precision]
    np.testing.assert_allclose(store.logical(key, tensors[key].shape), floats(stored[key]), rtol=rtol, atol=1e-7)


@pytest.mark.parametrize(
    ("precision", "kind", "what"),
    [
        ("int8", "q8g32", "int8 in groups of 32, and the plan packs it as int8 by output channel"),
        ("int8", "q4g32", "int4 in groups of 32, and the plan packs it as int8 by output channel"),
        ("int4-g32", "q8", "int8 by output channel, and the plan packs it as int4 in groups of 32"),
    ],
)
def test_a_weight_in_another_format_is_refused(precision: str, kind: str, what: str) -> None:
    _, _, tensors = packed("fp32")
    key = "layers.1.o.weight"
    with pytest.raises(ModelFormatError, match=what) as caught:
        packed(precision, {**tensors, key: quantized(kind, tensors[key])})  # type: ignore[dict-item]
    assert "layers.1.o" in str(caught.value.field)


@pytest.mark.parametrize("kind", ["q8g64", "q8g32", "i8", "q8", "q4g32", "f16", "bf16", "f32"])
def test_layouts_have_the_bytes_that_are_counted(kind: str) -> None:
    form = layout(kind, (130, 192))
    assert packed_bytes(kind, (130, 192)) == form.nbytes  # type: ignore[arg-type]
    assert form.shape[0] == 3 and (form.scale is None) == (kind in FLOATS)
