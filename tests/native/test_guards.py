"""Guards: what they change, what they count, and that neither depends on company, chunks or threads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import taut
from cases.kernels import norm
from native.harness import Data, isas, make_data, make_plan, run_plan, runtime
from native.test_attention import BEST, NUM_BLOCKS, Shape, Subject, batch_of, random_qkv
from taut import ops
from taut.api import Model
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import KVPool
from taut.kernels import native
from taut.testing import tiny
from testing.loud import loud

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]
Floats = NDArray[np.float32]


def counted(plan: Any, data: Data, isa: str, threads: int = 1) -> dict[str, dict[str, int]]:
    """What one run counts, of steps named by their op."""
    named = replace(plan, steps=tuple(replace(step, origin=(step.op,)) for step in plan.steps))
    executor = NativeExecutor(named, data.store, runtime(isa, threads), None)
    executor.run(data.batch, 0, 0)
    for view, value in zip(named.steps[0].inputs, data.inputs, strict=True):
        executor.value(view, data.batch)[...] = value
    executor.run(data.batch)
    first = executor.counts()
    executor.run(data.batch)
    twice = executor.counts()
    assert all(twice[step][kind] == 2 * count for step, kinds in first.items() for kind, count in kinds.items())
    executor.reset_counts()
    assert executor.counts() == {}
    return first


def test_the_kinds() -> None:
    assert native.counters() == ["clamped", "scores", "fallback", "nonfinite"]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("op", ["rms_norm", "layer_norm"])
def test_a_norm_is_clamped_and_counts(op: str, isa: str, threads: int) -> None:
    case, free = norm(op, 100, clamp=1.5), norm(op, 100)
    data = make_data(case)
    (unguarded,) = run_plan(make_plan(free), data, runtime(isa, threads))
    (guarded,) = run_plan(make_plan(case), data, runtime(isa, threads))
    beyond = np.abs(unguarded) > 1.5
    assert guarded[~beyond].tobytes() == unguarded[~beyond].tobytes()
    assert (guarded[beyond] == np.copysign(np.float32(1.5), unguarded[beyond])).all()
    assert counted(make_plan(case), data, isa, threads) == {op: {"clamped": int(beyond.sum())}}
    assert counted(make_plan(free), data, isa, threads) == {}


@pytest.mark.parametrize("clamp", [0.0, 1.5])
def test_rows_that_are_not_finite_are_counted_and_stay(clamp: float) -> None:
    case = norm("layer_norm", 37, **({"clamp": clamp} if clamp else {}))
    data = make_data(case)
    data.inputs[0][2, 5], data.inputs[0][7, 0], data.inputs[0][8, 36] = np.nan, np.inf, 1e30
    assert counted(make_plan(case), data, BEST)["layer_norm"]["nonfinite"] == 3, "NaN, infinity, and squares beyond float32"
    (y,) = run_plan(make_plan(case), data, runtime(BEST))
    assert np.isnan(y[[2, 7]]).any(axis=1).all() and np.isfinite(y[[0, 1, 3]]).all()


LIMIT = 1.25
SHAPES = (Shape(9, 3, 64), Shape(4, 2, 80, "fp32"), Shape(3, 1, 64, "bf16"), Shape(2, 1, 20, "k8v4"), Shape(8, 1, 8))


def limited(shape: Shape, isa: str = BEST, threads: int = 1, limit: float = LIMIT) -> Subject:
    subject = Subject(shape, isa, threads, num_blocks=NUM_BLOCKS)
    write, attend = subject.plan.steps
    attend = replace(attend, attrs={**attend.attrs, "score_limit": limit}, origin=("attend",))
    subject.plan = replace(subject.plan, steps=(write, attend))
    subject.executor = NativeExecutor(subject.plan, shape.store, runtime(isa, threads), subject.pool)
    return subject


def scores_beyond(shape: Shape, q: Floats, pool: KVPool, table: list[int], length: int) -> int:
    k, _ = pool.read(1, np.array(table), length)
    heads = q.reshape(length, shape.kv_heads, -1, shape.head_dim).astype(np.float64) * shape.head_dim**-0.5
    scores = np.einsum("tkgd,jkd->kgtj", heads, k)
    return int(((np.abs(scores) > LIMIT) & np.tri(length, dtype=bool)).sum())


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.heads}x{shape.head_dim}-{shape.format}")
def test_scores_are_limited_and_counted(shape: Shape, isa: str) -> None:
    length, table = 77, [5, 2, 9]
    batch, qkv = batch_of([(0, length)], [table]), random_qkv(shape, length, 3)
    subject = limited(shape, isa)
    actual = subject.run(batch, qkv)
    context = ops.Context(
        batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, subject.pool
    )
    (expected,) = ops.find("attention").run([qkv[0]], [], subject.plan.steps[1].attrs, context)
    assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()
    assert np.abs(actual - Subject(shape, isa).run(batch, qkv)).max() > 1e-3 * np.abs(expected).max(), "the limit bites"
    beyond = scores_beyond(shape, qkv[0], subject.pool, table, length)
    assert beyond > 20 and subject.executor.counts() == {"attend": {"scores": beyond}}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.heads}x{shape.head_dim}-{shape.format}")
def test_neither_bits_nor_counts_depend_on_chunks_and_threads(shape: Shape) -> None:
    length, table = 171, [3, 11, 6, 2, 9, 4]
    qkv = random_qkv(shape, length, 6)
    alone = limited(shape)
    whole = alone.run(batch_of([(0, length)], [table]), qkv)
    shared = limited(shape, threads=2)
    rows, begin = [], 0
    for size in (1, 31, 5, 60, 64, 1, 9):
        batch = batch_of([(begin, begin + size)], [table])
        rows.append(shared.run(batch, [x[begin : begin + size] for x in qkv]))
        begin += size
    assert np.concatenate(rows).tobytes() == whole.tobytes()
    assert shared.executor.counts() == alone.executor.counts() != {}


def test_a_limit_that_nothing_reaches_changes_no_bit() -> None:
    shape, batch = SHAPES[0], batch_of([(0, 77)], [[5, 2, 9]])
    qkv = random_qkv(shape, 77, 3)
    far = limited(shape, limit=5e4)
    assert far.run(batch, qkv).tobytes() == Subject(shape).run(batch, qkv).tobytes()
    assert far.executor.counts() == {}


def test_unseen_keys_are_not_counted() -> None:
    """The pool starts full of NaN, and a stale block of huge numbers lies behind the last key."""
    shape = Shape(2, 1, 64, "fp32")
    subject = limited(shape)
    subject.pool.memory.view(np.float32)[...] = 1e30
    qkv = [x * np.float32(0.01) for x in random_qkv(shape, 5, 3)]
    subject.run(batch_of([(0, 5)], [[1]]), qkv)
    assert subject.executor.counts() == {}


def load(folder: Path, **options: Any) -> Model:
    return taut.load(str(folder), precision="fp16", memory_bytes=1 << 30, **options)


def test_a_model_counts_by_layer_and_says_so(tmp_path: Path) -> None:
    folder = loud(tiny("llama", tmp_path, max_position_embeddings=256), "model.layers.1.input_layernorm.weight", 1e5)
    model = load(folder)
    ids = [7 * i % 200 for i in range(40)]
    model.logits(ids)
    counts = model.engine.executor.counts()
    (step,) = (name for name, kinds in counts.items() if "clamped" in kinds)
    assert step.endswith("layers.1.attention_norm") and counts[step]["clamped"] > 100
    assert model.engine.guards()["clamped"] == counts[step]["clamped"]
    assert model.loop.stats().guards == model.engine.guards()
    free = load(folder, disable_passes=["guard"])
    assert free.logits(ids).tobytes() != model.logits(ids).tobytes() and free.engine.guards() == {}


def test_the_reference_clamps_too(tmp_path: Path) -> None:
    folder = loud(tiny("llama", tmp_path, max_position_embeddings=256), "model.layers.1.input_layernorm.weight", 1e5)
    ids = [7 * i % 200 for i in range(20)]
    expected = load(folder, executor="reference").logits(ids)
    assert np.abs(load(folder).logits(ids) - expected).max() <= 1e-3 * np.abs(expected).max()
    free = load(folder, executor="reference", disable_passes=["guard"]).logits(ids)
    assert np.abs(free - expected).max() > 1e-2 * np.abs(expected).max()
