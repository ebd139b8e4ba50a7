"""One step for an encoder's q, k, v and attention gives the bits of the steps that it replaces, on any threads, beside any neighbours."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from native.harness import isas, make_batch, runtime
from native_q8.test_epilogues import Array, Tensors
from taut import ops, passes, plan
from taut.engine.batch import Batch
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import aligned_bytes
from taut.graph import Builder, Graph
from taut.plan import weights
from taut.plan.weights import WeightStore

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]

SHAPES = (
    (2, 64),
    (4, 32),
    (3, 64),
    (1, 128),
    (2, 192),
    (8, 16),
)  # heads, head_dim: a panel holds one or several heads, a head two panels
LENGTHS = ([1], [31, 1, 40], [200], [33, 5, 9, 70, 2, 12, 64])


def encoder(heads: int, head_dim: int, *, kv_heads: int = 0) -> Graph:
    b, width = Builder(), heads * head_dim
    x = b.embed("x", b.weight("table", 100, 128))
    kv_width = (kv_heads or heads) * head_dim
    q, k, v = (b.linear_of(f"a.{name}", x, n, bias=True) for name, n in (("q", width), ("k", kv_width), ("v", kv_width)))
    attrs = {"heads": heads, "kv_heads": kv_heads or heads, "head_dim": head_dim, "scale": head_dim**-0.5}
    return b.finish(b.add_node("attention_full", "a.attention", (q, k, v), **attrs))


@functools.cache
def built(heads: int, head_dim: int, precision: str, fused: bool) -> tuple[Graph, WeightStore]:
    graph = encoder(heads, head_dim)
    disabled = () if fused else ("fuse_qkv_attention",)
    optimized = passes.optimize(graph, passes.Options(precision, disabled))  # type: ignore[arg-type]
    return optimized, weights.load(optimized, Tensors(graph, 0.05), aligned_bytes)


def run(graph: Graph, store: WeightStore, batch: Batch, isa: str, threads: int = 1, softmax_keys: int = 64) -> Array:
    made = plan.make(graph, plan.Target(isa, softmax_keys), "int8")
    return NativeExecutor(made, store, runtime(isa, threads), None).run(batch)[0].copy()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", ["int8", "int4-g32"])
@pytest.mark.parametrize("isa", isas())
def test_bits(isa: str, precision: str, shape: tuple[int, int]) -> None:
    unfused, fused = (built(*shape, precision, on) for on in (False, True))
    assert [node.op for node in fused[0].nodes] == ["embed", "quantize", "qkv_attention"]
    assert "attention_full" in [node.op for node in unfused[0].nodes]
    for lengths in LENGTHS:
        batch = make_batch(lengths)
        want = run(*unfused, batch, "scalar")
        for threads in (1, 2):  # two leave one idle where there is one group of heads: then it runs in two parts
            for keys in (64, 0):
                got = run(*fused, batch, isa, threads, keys)
                assert np.isfinite(want).all()
                if keys == 64:
                    assert got.tobytes() == want.tobytes(), (lengths, threads)
                else:
                    assert got.tobytes() == run(*unfused, batch, "scalar", 1, keys).tobytes(), (lengths, threads)


@pytest.mark.parametrize("precision", ["int8", "int4-g64"])
def test_reference(precision: str) -> None:
    graph, store = built(4, 32, precision, True)
    batch = make_batch([9, 4])
    node = graph.nodes[-1]
    context = ops.Context(batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, None)
    x = store.logical("table", graph.weight_shape("table"))[batch.ids]
    (rows,) = ops.find("quantize").run([x], (), {"group": node.attrs["group"]}, context)
    logical = [store.logical(key, graph.weight_shape(key)) for key in node.weights]
    (want,) = ops.find(node.op).run([rows], logical, node.attrs, context)
    np.testing.assert_allclose(run(graph, store, batch, isas()[-1]), want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))


def test_what_does_not_fit_stays() -> None:
    """Heads that fill no panels, and heads that share keys."""
    for graph in (encoder(3, 48), encoder(4, 32, kv_heads=2), encoder(3, 32)):
        optimized = passes.optimize(graph, passes.Options("int8"))
        assert "attention_full" in [node.op for node in optimized.nodes]


def test_pins_name_its_parts() -> None:
    graph = passes.optimize(encoder(4, 32), passes.Options("int8", pins=(("a.q", "int4-g64"),)))
    assert graph.nodes[-1].op == "qkv_attention" and graph.nodes[-1].attrs["bits"] == 4
