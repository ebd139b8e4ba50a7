"""The paged cache and causal attention over it: against the numpy reference, and bit for bit under any chunking, company and block order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from native.harness import isas, runtime
from taut import ops
from taut.engine.batch import Batch
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import KVLayout, KVPool
from taut.errors import RequestError
from taut.ops.rope import RopeTable
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import PackedWeight, WeightStore
from taut.quant.schemes.int8 import round_up

pytestmark = [pytest.mark.native, pytest.mark.skipif(not isas(), reason="the native module is not built")]
BEST = isas()[-1] if isas() else ""
NUM_BLOCKS = 24
CHUNKS = (32, 64, 256, 0)  # keys of one softmax; 0: all
STORE = WeightStore({}, {})


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    format: str = "int8"
    rotary_dim: int = 0  # 0: no rotation

    @property
    def layout(self) -> KVLayout:
        return KVLayout(2, self.kv_heads, self.head_dim, self.format)  # type: ignore[arg-type]

    @property
    def store(self) -> WeightStore:
        if not self.rotary_dim:
            return STORE
        table = RopeTable(10000.0, self.rotary_dim, 512).build(512)
        return WeightStore({"rope": PackedWeight("table", table.shape, table)}, {})


SHAPES = (
    Shape(9, 3, 64, rotary_dim=64),
    Shape(4, 4, 64, "fp32", rotary_dim=64),
    Shape(4, 2, 128, rotary_dim=128),
    Shape(2, 1, 20),
    Shape(3, 1, 80, "fp32", rotary_dim=40),
    Shape(1, 1, 4),
    Shape(8, 1, 8, rotary_dim=8),
    Shape(9, 3, 64, "bf16", rotary_dim=64),
    Shape(3, 1, 80, "bf16", rotary_dim=40),
    Shape(2, 1, 20, "bf16"),
    Shape(9, 3, 64, "k8v4", rotary_dim=64),
    Shape(4, 2, 80, "k8v4"),
    Shape(1, 1, 4, "k8v4"),
)


def plan_of(shape: Shape, softmax_keys: int) -> Plan:
    """qkv in one buffer; the cache is written in layer 1, then attended."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    qkv = Buffer("tokens", 0, round_up(4 * (q + 2 * kv), 64))
    out = Buffer("tokens", qkv.row_bytes, round_up(4 * q, 64))
    views = (View("q", qkv, 0, q), View("k", qkv, q, kv), View("v", qkv, q + kv, kv))
    attrs = {"layer": 1, "head_dim": shape.head_dim}
    if shape.rotary_dim:
        write = Step("rope_cache", views, views[:1], ("rope",), {**attrs, "rotary_dim": shape.rotary_dim})
    else:
        write = Step("cache_write", views[1:], (), (), attrs)
    heads = {"heads": shape.heads, "kv_heads": shape.kv_heads, "scale": shape.head_dim**-0.5, "softmax_keys": softmax_keys}
    attend = Step("attention", views[:1], (View("o", out, 0, q),), (), {**attrs, **heads})
    return Plan((write, attend), attend.outputs, {"tokens": qkv.row_bytes + out.row_bytes, "rows": 0, "sequences": 0}, "fp32")


def batch_of(spans: list[tuple[int, int]], tables: list[list[int]]) -> Batch:
    """Sequence s contributes positions [begin, end)."""
    lengths = [end - begin for begin, end in spans]
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    positions = np.concatenate([np.arange(begin, end) for begin, end in spans]).astype(np.int32)
    width = max(map(len, tables))
    padded = np.array([table + [0] * (width - len(table)) for table in tables], np.int32)
    zeros = np.zeros(len(positions), np.int32)
    return Batch(zeros, positions, starts, np.array([end for _, end in spans], np.int32), padded, starts[1:] - 1, zeros)


class Subject:
    """One shape on one ISA with its own pool, which starts full of 0xFF: NaN scales and numbers."""

    def __init__(
        self, shape: Shape, isa: str = BEST, threads: int = 1, softmax_keys: int = 64, num_blocks: int = NUM_BLOCKS
    ) -> None:
        self.shape, self.plan, self.pool = shape, plan_of(shape, softmax_keys), KVPool(shape.layout, num_blocks)
        self.pool.memory[...] = 0xFF
        self.executor = NativeExecutor(self.plan, shape.store, runtime(isa, threads), self.pool)

    def run(self, batch: Batch, qkv: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        self.executor.run(batch, 0, 0)
        write = self.plan.steps[0]
        views = {view.name: view for view in (*write.inputs, *self.plan.steps[1].inputs)}
        for name, value in zip("qkv", qkv, strict=True):
            self.executor.value(views[name], batch)[...] = value
        return self.executor.run(batch)[0].copy()


def random_qkv(shape: Shape, tokens: int, seed: int) -> list[NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    widths = (shape.heads, shape.kv_heads, shape.kv_heads)
    return [(rng.standard_normal((tokens, width * shape.head_dim)) * 1.5).astype(np.float32) for width in widths]


def names(shape: Shape) -> str:
    return f"{shape.heads}x{shape.kv_heads}x{shape.head_dim}-{shape.format}-rope{shape.rotary_dim}"


@pytest.mark.parametrize("softmax_keys", [32, 64, 0])
@pytest.mark.parametrize("shape", SHAPES, ids=names)
@pytest.mark.parametrize("isa", isas())
def test_matches_reference(shape: Shape, isa: str, softmax_keys: int) -> None:
    batch = batch_of([(0, 77), (0, 1), (0, 33)], [[5, 2, 9], [0], [7, 1]])
    qkv = random_qkv(shape, batch.num_tokens, 3)
    subject = Subject(shape, isa, softmax_keys=softmax_keys)
    actual = subject.run(batch, qkv)
    pool = KVPool(shape.layout, NUM_BLOCKS)
    pool.memory[...] = subject.pool.memory  # the reference attends over the same stored numbers
    context = ops.Context(batch.ids, batch.positions, batch.types, batch.starts, batch.context, batch.tables, batch.rows, pool)
    q, attrs = qkv[0], subject.plan.steps[1].attrs
    if shape.rotary_dim:
        table = [shape.store["rope"].data]
        rope_attrs = {"head_dim": shape.head_dim, "rotary_dim": shape.rotary_dim}
        (q,) = ops.find("rope").run([q], table, rope_attrs, context)
    (expected,) = ops.find("attention").run([q], [], attrs, context)
    assert np.abs(actual - expected).max() <= 3e-6 * np.abs(expected).max()
    k = qkv[1]
    if shape.rotary_dim:
        (k,) = ops.find("rope").run([k], table, rope_attrs, context)
    for s, table_row in enumerate(batch.tables):
        own = slice(batch.starts[s], batch.starts[s + 1])
        stored_k, stored_v = pool.read(1, table_row, int(batch.context[s]))
        for slot, stored, given in zip(shape.layout.slots, (stored_k, stored_v), (k[own], qkv[2][own]), strict=True):
            heads = given.reshape(stored.shape)
            assert (np.abs(stored - heads) <= rounding(slot.kind, heads) + 1e-7).all(), (
                "what was stored is what was given, rounded"
            )


def rounding(kind: str, heads: NDArray[np.float32]) -> NDArray[np.float32]:
    """How far a stored number may lie from the given one, (tokens, heads, head_dim)."""
    largest = np.abs(heads).max(axis=-1, keepdims=True)
    if kind == "int4":  # half a step of the whole row's range, and float16's rounding of both ends
        return (0.51 / 15 + 2**-10) * 2 * largest
    return {"fp32": 1e-6 * largest, "bf16": 2**-8 * np.abs(heads), "int8": 0.51 / 127 * largest}[kind]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if not shape.rotary_dim], ids=names)
def test_cache_write_equals_the_reference_pool(shape: Shape) -> None:
    batch = batch_of([(0, 40), (0, 3)], [[4, 3], [8]])
    subject, qkv = Subject(shape), random_qkv(shape, 43, 5)
    qkv[1][2] = 0.0
    qkv[2][7, 0] = np.inf  # NaN scale, zeros
    subject.run(batch, qkv)
    pool = KVPool(shape.layout, NUM_BLOCKS)
    pool.memory[...] = 0xFF
    k, v = (x.reshape(43, shape.kv_heads, shape.head_dim) for x in qkv[1:])
    for s, table in enumerate(batch.tables):
        own = slice(batch.starts[s], batch.starts[s + 1])
        pool.write(1, table, batch.positions[own], k[own], v[own])
    assert np.array_equal(pool.memory, subject.pool.memory)


@pytest.mark.parametrize("shape", SHAPES, ids=names)
def test_every_isa_gives_the_same_bits(shape: Shape) -> None:
    batch = batch_of([(0, 45), (0, 64)], [[5, 2], [7, 1]])
    qkv = random_qkv(shape, batch.num_tokens, 4)
    results = []
    for isa in isas():
        subject = Subject(shape, isa)
        results.append(subject.run(batch, qkv).tobytes() + subject.pool.memory.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("shape", SHAPES, ids=names)
def test_chunks_company_and_blocks_do_not_matter(shape: Shape) -> None:
    length, table = 171, [3, 11, 6, 2, 9, 4]
    qkv = random_qkv(shape, length, 6)
    whole = Subject(shape).run(batch_of([(0, length)], [table]), qkv)
    other = random_qkv(shape, 50, 7)
    chunked = Subject(shape, threads=2)
    rows, begin = [], 0
    for size in (1, 31, 5, 60, 64, 1, 9):
        end = begin + size
        mine = [x[begin:end] for x in qkv]
        # Companions before and after, in blocks of their own; this sequence's blocks in another order.
        batch = batch_of([(0, 50), (begin, end), (0, 50)], [[0, 1], [8, 10, 12, 14, 16, 18], [20, 21]])
        rows.append(
            chunked.run(batch, [np.concatenate(parts) for parts in zip(other, mine, other, strict=True)])[50 : 50 + size]
        )
        begin = end
    assert begin == length
    assert np.concatenate(rows).tobytes() == whole.tobytes()


LONG = (
    Shape(9, 3, 64),
    Shape(2, 2, 64, "fp32"),
    Shape(5, 1, 20),
    Shape(2, 1, 128),
    Shape(3, 1, 64, "bf16"),
    Shape(3, 1, 64, "k8v4"),
)


@pytest.mark.parametrize("softmax_keys", CHUNKS)
@pytest.mark.parametrize("shape", LONG, ids=names)
def test_threads_share_a_long_context_without_a_trace(shape: Shape, softmax_keys: int) -> None:
    """One thread takes all chunks of keys; with two, a call that would keep one of them busy alone is split into its chunks. Prefill rows
    and decode rows of a position have the same bits in both."""
    length, table = 700, list(range(1, 23))
    qkv = random_qkv(shape, length, 10)
    whole = Subject(shape, softmax_keys=softmax_keys).run(batch_of([(0, length)], [table]), qkv)
    shared = Subject(shape, threads=2, softmax_keys=softmax_keys)
    singles = [(at, at + 1) for at in (*range(500, 508), *range(645, 675))]
    parts = sorted([(0, 500), (508, 516), (516, 636), (636, 645), (675, length), *singles])  # two cross a chunk's border
    rows = [shared.run(batch_of([(begin, end)], [table]), [x[begin:end] for x in qkv]) for begin, end in parts]
    assert np.concatenate(rows).tobytes() == whole.tobytes()


def test_one_long_sequence_among_short_ones() -> None:
    """Only its calls are split, and each result lands in its place."""
    shape, table = LONG[0], list(range(20))
    long = random_qkv(shape, 600, 11)
    short = random_qkv(shape, 2, 12)
    alone = Subject(shape, softmax_keys=64)
    expected_long = alone.run(batch_of([(0, 600)], [table]), long)[-1:]
    expected_short = alone.run(batch_of([(0, 2)], [[21]]), short)[-1:]
    together = Subject(shape, threads=2, softmax_keys=64)
    together.run(batch_of([(0, 599), (0, 1), (0, 1)], [table, [21], [22]]), [
        np.concatenate([a[:599], b[:1], b[:1]]) for a, b in zip(long, short, strict=True)
    ])  # fmt: skip
    rows = together.run(batch_of([(1, 2), (599, 600), (1, 2)], [[21], table, [22]]), [
        np.concatenate([b[1:], a[599:], b[1:]]) for a, b in zip(long, short, strict=True)
    ])  # fmt: skip
    assert rows.tobytes() == np.concatenate([expected_short, expected_long, expected_short]).tobytes()


@pytest.mark.parametrize("shape", LONG, ids=names)
def test_policies_are_one_below_their_first_chunk(shape: Shape) -> None:
    """A row that sees one chunk alone has plain attention's bits; later rows are rounded otherwise, within the same bound."""
    qkv = random_qkv(shape, 300, 13)
    results = {keys: Subject(shape, softmax_keys=keys).run(batch_of([(0, 300)], [list(range(10))]), qkv) for keys in CHUNKS}
    plain = results[0]
    for keys, flash in results.items():
        if keys:
            assert flash[:keys].tobytes() == plain[:keys].tobytes()
            assert flash[keys:].tobytes() != plain[keys:].tobytes(), "the chunk is what was asked for"
            assert np.abs(flash - plain).max() <= 2e-6 * np.abs(plain).max()


def test_plain_attention_outgrows_the_planned_scratch() -> None:
    shape, length = Shape(8, 1, 8), 9000
    qkv = random_qkv(shape, length, 14)
    subject = Subject(shape, softmax_keys=0, num_blocks=300)
    table = [list(range(282))]
    subject.run(batch_of([(0, length - 1)], table), [x[:-1] for x in qkv])
    last = subject.run(batch_of([(length - 1, length)], table), [x[-1:] for x in qkv])
    q, k, v = (x.reshape(length, -1, 8) for x in (qkv[0], *subject_cache(subject, table[0], length)))
    scores = np.einsum("hd,jd->hj", q[-1].astype(np.float64), k[:, 0]) * 8**-0.5
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = (p / p.sum(axis=1, keepdims=True)) @ v[:, 0]
    assert np.abs(last.reshape(8, 8) - expected).max() <= 3e-6 * np.abs(expected).max()


def subject_cache(subject: Subject, table: list[int], length: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Keys and values as they are stored."""
    return subject.pool.read(1, np.array(table, np.int32), length)


@pytest.mark.parametrize("shape", SHAPES[:2], ids=names)
def test_the_bound_bites(shape: Shape) -> None:
    """One key token more or less is seen."""
    qkv = random_qkv(shape, 40, 8)
    subject = Subject(shape)
    full = subject.run(batch_of([(0, 40)], [[1, 2]]), qkv)
    mutant = [x.copy() for x in qkv]
    mutant[2][0] += 1.0
    assert np.abs(Subject(shape).run(batch_of([(0, 40)], [[1, 2]]), mutant) - full).max() > 1e-3 * np.abs(full).max()


def test_a_spoiled_token_spoils_its_sequence_alone() -> None:
    shape = SHAPES[0]
    batch = batch_of([(0, 20), (0, 20)], [[1], [2]])
    qkv = random_qkv(shape, 40, 9)
    clean = Subject(shape).run(batch, qkv)
    qkv[1][25, 0] = np.nan
    spoiled = Subject(shape).run(batch, qkv)
    assert spoiled[:25].tobytes() == clean[:25].tobytes()
    assert np.isnan(spoiled[25:]).any(axis=1).all()


@pytest.mark.parametrize(
    ("spans", "tables", "context", "message"),
    [
        ([(0, 5)], [[NUM_BLOCKS]], None, "not in the pool"),
        ([(0, 5)], [[-1]], None, "not in the pool"),
        ([(0, 40)], [[1]], None, "too short"),
        ([(0, 5)], [[1]], [6], "context"),
        ([(511, 514)], [[1] * 17], None, "outside the model"),
    ],
)
def test_a_wrong_batch_is_refused(
    spans: list[tuple[int, int]], tables: list[list[int]], context: list[int] | None, message: str
) -> None:
    batch = batch_of(spans, tables)
    if context:
        batch = Batch(
            batch.ids, batch.positions, batch.starts, np.array(context, np.int32), batch.tables, batch.rows, batch.types
        )
    with pytest.raises(RequestError, match=message):
        Subject(SHAPES[0]).executor.run(batch)
