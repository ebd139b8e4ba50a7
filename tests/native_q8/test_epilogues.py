"""What is fused behind a quantized linear gives the bits of the steps that it replaces: gate, residual, quantized output."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from native.harness import isas, make_batch, runtime
from taut import ops, passes, plan
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import aligned_bytes
from taut.graph import Builder, Graph
from taut.plan import weights
from taut.plan.weights import WeightStore

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]

FUSIONS = ("fuse_gate", "fuse_requantize", "fuse_residual")
ROWS = (1, 2, 5, 13, 31, 200)  # every tile, the classes for many rows, more than one block
Array = np.ndarray


def gated(hidden: int, ffn: int, act: str, bias: bool) -> Graph:
    """x + down(act(gate(x)) * up(x))"""
    b = Builder()
    x = b.embed("x", b.weight("table", 100, hidden))
    gate = b.unary(act, "m.act", b.linear_of("m.gate", x, ffn, bias=bias))
    product = b.binary("mul", "m.mul", gate, b.linear_of("m.up", x, ffn, bias=bias))
    return b.finish(b.binary("add", "m.out", x, b.linear_of("m.down", product, hidden, bias=bias)))


def plain(hidden: int, ffn: int, act: str, bias: bool) -> Graph:
    """down(act(up(x))) + x"""
    b = Builder()
    x = b.embed("x", b.weight("table", 100, hidden))
    middle = b.unary(act, "m.act", b.linear_of("m.up", x, ffn, bias=bias))
    return b.finish(b.binary("add", "m.out", b.linear_of("m.down", middle, hidden, bias=bias), x))


class Tensors:
    """Random weights, the same for every graph of the same shapes."""

    def __init__(self, graph: Graph, scale: float = 1) -> None:
        rng = np.random.default_rng(0)
        shapes = {key: graph.weights[key].shape for key in sorted(graph.weights)}
        self._tensors = {key: (rng.standard_normal(shape) * scale).astype(np.float32) for key, shape in shapes.items()}

    def read(self, key: str) -> Array:
        return self._tensors[key]

    def release(self) -> None: ...


@functools.cache
def built(make, shape: tuple[int, int], act: str, bias: bool, precision: str, fused: bool) -> tuple[Graph, WeightStore]:
    graph = make(*shape, act, bias)
    disabled = () if fused else FUSIONS
    optimized = passes.optimize(graph, passes.Options(precision, disabled))  # type: ignore[arg-type]
    return optimized, weights.load(optimized, Tensors(graph), aligned_bytes)


def run(graph: Graph, store: WeightStore, rows: int, isa: str, threads: int = 1) -> Array:
    made = plan.make(graph, plan.Target(isa), "int8")
    executor = NativeExecutor(made, store, runtime(isa, threads), None)
    return executor.run(make_batch([rows]))[0].copy()


def fusions(graph: Graph) -> set[str]:
    return {name for node in graph.nodes for name in ("gated", "add", "out_group") if node.attrs.get(name)}


# hidden, ffn: groups of 32, 64 and 128; half a panel left over; more panels than a work item takes
SHAPES = ((64, 96), (128, 128), (128, 192), (70, 256), (256, 1152))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("act", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("precision", ["int8", "int4-g32"])
@pytest.mark.parametrize("isa", isas())
def test_gated_bits(isa: str, precision: str, act: str, bias: bool) -> None:
    for shape in SHAPES[:3]:
        check(gated, shape, act, bias, precision, isa, {"gated", "add", "out_group"})


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("make", [gated, plain])
@pytest.mark.parametrize("precision", ["int8", "int4-g128"])
@pytest.mark.parametrize("isa", isas())
def test_shapes(isa: str, precision: str, make, shape: tuple[int, int]) -> None:
    check(make, shape, "gelu", True, precision, isa, {"add"} | ({"out_group"} if shape[1] % 32 == 0 else set()))


def check(make, shape: tuple[int, int], act: str, bias: bool, precision: str, isa: str, expected: set[str]) -> None:
    unfused, fused = (built(make, shape, act, bias, precision, on) for on in (False, True))
    assert not fusions(unfused[0]) and expected <= fusions(fused[0])
    for rows in ROWS:
        want = run(*unfused, rows, "scalar")
        for threads in (1, 2):
            got = run(*fused, rows, isa, threads)
            assert np.isfinite(want).all() and got.tobytes() == want.tobytes(), (shape, rows, threads)


def test_what_does_not_fit_stays() -> None:
    """Half panels that the gate does not fill, and one scale for a whole row."""
    graph, _ = built(gated, (64, 100), "silu", False, "int8", True)
    assert [node.op for node in graph.nodes] == ["embed", "quantize", "linear_q8", "swiglu", "linear_q8"]
    assert fusions(graph) == {"add"}


@pytest.mark.parametrize("make", [gated, plain])
@pytest.mark.parametrize("precision", ["int8", "int4-g64"])
def test_reference_of_fused_ops(make, precision: str) -> None:
    """The fused ops' own references, beside the steps that they replaced."""
    graph, store = built(make, (128, 128), "silu", True, precision, True)
    batch = make_batch([9])
    context = ops.Context(batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, None)
    results = []
    for nodes in (graph.nodes, [part for node in graph.nodes for part in node.decompose()]):
        values: dict[str, Array] = {}
        for node in nodes:
            shapes = {**graph.weights, **make(128, 128, "silu", True).weights}
            logical = [store.logical(key, shapes[key].shape) for key in node.weights]
            made = ops.find(node.op).run([values[name] for name in node.inputs], logical, node.attrs, context)
            values.update(zip(node.outputs, made, strict=True))
        results.append(values[graph.outputs[0]])
    np.testing.assert_allclose(*results, rtol=1e-3, atol=1e-3 * float(np.abs(results[0]).max()))
    native = run(graph, store, 9, isas()[-1])
    np.testing.assert_allclose(native, results[0], rtol=1e-2, atol=1e-2 * float(np.abs(native).max()))
