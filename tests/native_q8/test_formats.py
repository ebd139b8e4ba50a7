"""int8 weights in groups and int8 weights on float activations: every ISA gives the bits of the definitions."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import MappingProxyType

import ml_dtypes
import numpy as np
import pytest

from native.harness import Data, isas, make_batch, run_plan, runtime
from native_q8.harness import ISAS, from_floats, problem, reference, run, same_bits
from native_q8.test_epilogues import Array, Tensors, fusions, gated, plain
from native_q8.test_epilogues import run as run_graph
from native_q8.test_qkv_attention import encoder
from native_q8.test_qkv_attention import run as run_attention
from taut import ops, passes, plan
from taut.engine.executors.native import NativeExecutor, f32_segments
from taut.engine.kv_cache import aligned_bytes
from taut.errors import ModelFormatError
from taut.graph import Builder, Graph, Node
from taut.kernels import native
from taut.plan import packing, weights
from taut.plan.packing import layout
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.schemes import int8, w8a16

pytestmark = [pytest.mark.native, pytest.mark.skipif(not ISAS, reason="the native core is not built")]
every_isa = pytest.mark.parametrize("isa", ISAS)
MOST_ROWS = 200
CUTS = ([0, 1, 2, 3, 40], [0, 17, 17, 23, 40], [0, 39, 40])


# int8 weights in groups


@every_isa
@pytest.mark.parametrize(("k", "group"), [(576, 32), (576, 64), (384, 128), (1280, 64), (96, 32), (128, 128), (2048, 128)])
def test_groups_in_every_row_count(isa: str, k: int, group: int) -> None:
    p = problem(40, k, 130, group, bias=k % 128 == 0, grouped=True)
    expected = reference(p)
    for rows in range(1, 41):
        assert same_bits(run(p.first_rows(rows), isa), expected[:rows]), rows


@every_isa
@pytest.mark.parametrize("n", [1, 17, 63, 64, 65, 127])
def test_groups_of_many_rows_and_odd_columns(isa: str, n: int) -> None:
    p = problem(MOST_ROWS, 192, n, 64, bias=True, grouped=True)
    expected = reference(p)
    for rows in (1, 29, 30, 131, MOST_ROWS):
        assert same_bits(run(p.first_rows(rows), isa), expected[:rows]), rows


@every_isa
def test_groups_in_any_split_and_on_threads(isa: str) -> None:
    p = problem(40, 512, 300, 64, grouped=True)
    expected = reference(p)
    for cuts in CUTS:
        assert same_bits(run(p, isa, cuts=cuts, pool=native.thread_pool(3)), expected), cuts


@every_isa
def test_groups_of_the_largest_values(isa: str) -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.choice([-1.0, 1.0], shape).astype(np.float32) for shape in ((40, 1024), (65, 1024)))
    p = from_floats(x, w, 128, grouped=True)
    assert np.abs(p.q).min() == 127
    assert same_bits(run(p, isa), reference(p))


def test_groups_stand_for_their_weights() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((5, 576)).astype(np.float32), rng.lognormal(0, 2, (70, 576)).astype(np.float32)
    p, weight = from_floats(x, w, 64, grouped=True), int8.quantize_groups(w, 64)
    inputs = (p.q.reshape(5, 9, 64) * p.scales[:, :, None].astype(np.float64)).reshape(5, 576)
    np.testing.assert_allclose(reference(p), inputs @ weight.dequantized().T.astype(np.float64), rtol=2e-5)
    np.testing.assert_array_equal(int8.unpack(p.packed, 70, 576), weight.q)
    np.testing.assert_array_equal(int8.unpack_scales(p.w_scale, 70), weight.scale)


@every_isa
@pytest.mark.parametrize("rows", [1, 7, 40])
def test_one_wrong_scale_is_seen(isa: str, rows: int) -> None:
    p = problem(rows, 512, 70, 64, grouped=True)
    for place in ((0, 0, 0), (0, 7, 63), (1, 3, 5)):
        scale = p.w_scale.copy()
        scale[place] *= np.float32(1.0001)
        assert not same_bits(run(replace(p, w_scale=scale), isa), reference(p)), place


# Graphs, as passes would write them


def in_groups(graph: Graph, group: int) -> Graph:
    """Int8 weights in groups wherever inputs are in groups of that size."""

    def own(node: Node) -> Node:
        attrs = dict(node.attrs)
        if (node.op == "linear_q8" or attrs.get("bits") == 8) and attrs["group"] == group:
            attrs["weight_group"] = group
        return replace(node, attrs=MappingProxyType(attrs), origin=tuple(own(part) for part in node.origin))

    return graph.rebuilt(own(node) for node in graph.nodes)


@functools.cache
def built(make, shape: tuple[int, ...], rest: tuple[object, ...], disabled: tuple[str, ...]) -> tuple[Graph, WeightStore]:
    graph = make(*shape, *rest)
    optimized = in_groups(passes.optimize(graph, passes.Options("int8", disabled, 64)), 64)
    return optimized, weights.load(optimized, Tensors(graph, 0.1), aligned_bytes)


FUSIONS = ("fuse_gate", "fuse_requantize", "fuse_residual")


@every_isa
@pytest.mark.parametrize("make", [gated, plain])
@pytest.mark.parametrize("bias", [False, True])
def test_groups_with_everything_fused_behind_them(isa: str, make, bias: bool) -> None:
    unfused, fused = (built(make, (128, 192), ("silu", bias), disabled) for disabled in (FUSIONS, ()))
    assert {"add", "out_group"} <= fusions(fused[0])
    assert sum(node.attrs.get("weight_group") == 64 for node in fused[0].nodes) == 2
    assert {fused[1][key].kind for key in fused[1] if fused[1][key].scale is not None} == {"q8g64"}
    for rows in (1, 2, 5, 13, 31, MOST_ROWS):
        want = run_graph(*unfused, rows, "scalar")
        for threads in (1, 2):
            assert run_graph(*fused, rows, isa, threads).tobytes() == want.tobytes(), (rows, threads)


@every_isa
@pytest.mark.parametrize("shape", [(2, 64), (4, 32), (1, 128)], ids=str)
def test_groups_in_an_encoders_attention(isa: str, shape: tuple[int, int]) -> None:
    unfused, fused = (built(encoder, shape, (), disabled) for disabled in (("fuse_qkv_attention",), ()))
    assert fused[0].nodes[-1].op == "qkv_attention" and fused[0].nodes[-1].attrs["weight_group"] == 64
    for lengths in ([1], [31, 1, 40], [200]):
        batch = make_batch(lengths)
        want = run_attention(*unfused, batch, "scalar")
        for threads in (1, 2):
            assert run_attention(*fused, batch, isa, threads).tobytes() == want.tobytes(), (lengths, threads)


def test_references_of_groups() -> None:
    """Each op's own reference, beside the native result."""
    graph, store = built(gated, (128, 192), ("silu", True), ())
    batch = make_batch([9])
    context = ops.Context(batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, None)
    values: dict[str, Array] = {}
    for node in graph.nodes:
        logical = [store.logical(key, graph.weight_shape(key)) for key in node.weights]
        made = ops.find(node.op).run([values[name] for name in node.inputs], logical, node.attrs, context)
        values.update(zip(node.outputs, made, strict=True))
    got = run_graph(graph, store, 9, ISAS[-1])
    want = values[graph.outputs[0]]
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * float(np.abs(want).max()))


@pytest.mark.parametrize("kind", ["q8g64", "i8"])
def test_a_tied_head_serves_as_table(kind: str) -> None:
    b = Builder()
    table = b.weight("table", 100, 128)
    graph = b.finish(b.linear("logits", b.embed("x", table), table))
    if kind == "i8":
        taken = [replace(n, attrs=MappingProxyType({**n.attrs, "store": "i8"})) if n.op == "linear" else n for n in graph.nodes]
        graph = graph.rebuilt(taken)
    else:
        graph = in_groups(passes.optimize(graph, passes.Options("int8", (), 64)), 64)
    source = Tensors(graph, 1)
    store = weights.load(graph, source, aligned_bytes)
    assert [store[key].kind for key in store] == [kind]
    rows = int8.quantize_groups(source.read("table"), packing.group_of(kind)).dequantized()
    executor = NativeExecutor(made := plan.make(graph, plan.Target(ISAS[-1]), "int8"), store, runtime(ISAS[-1]), None)
    batch = make_batch([7])
    (logits,) = executor.run(batch)
    assert logits.shape == (7, 100) and made.steps[0].op == "embed"
    executor.run(batch, 0, 1)
    np.testing.assert_array_equal(executor.value(made.steps[0].outputs[0], batch), rows[batch.ids])
    np.testing.assert_allclose(executor.run(batch)[0], rows[batch.ids] @ rows.T, rtol=0, atol=1.5)


# int8 weights on float activations


def linear_plan(k: int, n: int, bias: bool) -> Plan:
    x, y = Buffer("tokens", 0, int8.round_up(4 * k, 64)), Buffer("tokens", int8.round_up(4 * k, 64), int8.round_up(4 * n, 64))
    step = Step("linear", (View("x", x, 0, k),), (View("y", y, 0, n),), ("w", "b" if bias else ""), {"store": "i8"})
    return Plan((step,), step.outputs, {"tokens": y.offset + y.row_bytes, "rows": 0, "sequences": 0}, "w8a16")


@pytest.mark.parametrize(("k", "n"), [(1, 70), (3, 64), (67, 1), (130, 33), (576, 130), (1024, 65)])
def test_w8a16_bits(k: int, n: int) -> None:
    rng = np.random.default_rng(k)
    x, w = rng.standard_normal((MOST_ROWS, k)).astype(np.float32), rng.standard_normal((n, k)).astype(np.float32)
    bias = np.zeros(int8.round_up(n, 64), np.float32)
    bias[:n] = rng.standard_normal(n)
    weight = int8.quantize_groups(w, 0)
    store = WeightStore({"w": PackedWeight("i8", (n, k), *w8a16.pack(weight)), "b": PackedWeight("vector", (n,), bias)}, {})
    for own in (None, bias[:n]):
        expected = w8a16.linear_reference(x, weight, f32_segments(k), own)
        made = linear_plan(k, n, own is not None)
        for isa in isas():
            for rows in (1, 2, 3, 4, 5, 6, 7, 13, 25, 49, MOST_ROWS):
                for threads in (1, 2):
                    data = Data((x[:rows],), (), store, make_batch([rows]))
                    (y,) = run_plan(made, data, runtime(isa, threads))
                    assert same_bits(y, expected[:rows]), (isa, rows, threads)


def test_w8a16_stands_for_its_weights() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 130)).astype(np.float32), rng.standard_normal((33, 130)).astype(np.float32)
    weight = int8.quantize_groups(w, 0)
    back = w8a16.unpack(*w8a16.pack(weight), 33)
    np.testing.assert_array_equal(back.q, weight.q)
    np.testing.assert_array_equal(back.scale, weight.scale)
    exact = x.astype(np.float64) @ weight.dequantized().T.astype(np.float64)
    np.testing.assert_allclose(w8a16.linear_reference(x, weight, f32_segments(130)), exact, rtol=1e-4, atol=1e-5)


# Packing


@every_isa
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("kind", "k"), [("q8g32", 96), ("q8g64", 576), ("q8g128", 384), ("i8", 7), ("i8", 576), ("i8", 300)])
def test_native_packers_equal_numpys(isa: str, dtype: type, kind: str, k: int) -> None:
    w = np.random.default_rng(k).standard_normal((130, k)).astype(np.float32).astype(dtype)
    w[5, : k // 2] = 0
    form = layout(kind, w.shape)
    source = native.SOURCES[np.dtype(dtype).name]
    words = w if source == "f32" else w.view(np.uint16)
    how = {"weight_group": packing.group_of(kind), "by_input": kind == "i8"}
    results = []
    for packer in (
        packing.pack_q8,
        functools.partial(native.pack_q8, pool=native.thread_pool(2)),
        lambda _, data, scale, __: native.module().pack(words, source, data.view(np.uint8), scale.reshape(-1), isa=isa, **how),
    ):
        data, scale = np.full(form.shape, 7, form.dtype), np.full(form.scale, np.nan, np.float32)
        packer(w, data, scale, "w")
        results.append((data.tobytes(), scale.tobytes()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("kind", ["q8g32", "i8"])
def test_damaged_weights_are_refused(kind: str) -> None:
    w = np.ones((200, 64), np.float32)
    w[170, 3] = w[133, 40] = np.nan
    form = layout(kind, w.shape)
    for packer in (packing.pack_q8, native.pack_q8):
        with pytest.raises(ModelFormatError, match=r"mlp\.up.*row 133"):
            packer(w, np.zeros(form.shape, form.dtype), np.zeros(form.scale, np.float32), "mlp.up")
