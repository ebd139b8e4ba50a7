"""The attention steps alone: percent of the fp32 multiply-add rate for prefill and encoders, percent of read bandwidth for decode.

    python bench/attention.py [--threads N] [--seconds S] [--only WORD] [--softmax-keys N ...] [--json FILE]

The ceiling is measured just before and after every repetition, in this process, on the same threads; the figures are medians of the paired
ratios. Decode reads the int8 caches of as many layers as make 100 MB or more, so that they come from memory.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from taut.bench import report
from taut.engine.batch import Batch
from taut.engine.executors.native import NativeExecutor
from taut.engine.kv_cache import BLOCK_TOKENS, KVLayout, KVPool, blocks_for
from taut.engine.runtime import Runtime, runtime
from taut.kernels import native
from taut.plan.plan import Buffer, Plan, Step, View
from taut.plan.weights import WeightStore


@dataclass(frozen=True)
class Shape:
    """`tokens` query tokens after `past` cached ones; `layers` attention steps. kv "": an encoder, `sequences` times as long."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    tokens: int
    past: int = 0
    layers: int = 1
    sequences: int = 1
    kv: str = "int8"

    @property
    def multiply_adds(self) -> float:
        """A causal row sees the keys up to itself."""
        keys = self.tokens if not self.kv else self.past + (self.tokens + 1) / 2
        return 2.0 * self.heads * self.head_dim * self.tokens * keys * self.layers * self.sequences

    @property
    def layout(self) -> KVLayout:
        return KVLayout(self.layers, self.kv_heads, self.head_dim, self.kv)  # type: ignore[arg-type]


SHAPES = (
    *(Shape(f"decode 135m {past}", 9, 3, 64, 1, past, 30 if past > 4000 else 120) for past in (31, 63, 127, 511, 2047, 8191)),
    *(Shape(f"decode 1.7b {past}", 32, 32, 64, 1, past, max(4, 24 * 512 // past)) for past in (63, 127, 511, 2047, 8191)),
    Shape("decode qwen3 8191", 16, 8, 128, 1, 8191, 12),
    *(Shape(f"prefill 1.7b {n}", 32, 32, 64, n, 0, 2) for n in (32, 64, 128, 512, 2048)),
    *(Shape(f"prefill 135m {n}", 9, 3, 64, n, 0, 4) for n in (64, 512, 2048)),
    Shape("prefill 1.7b fp32 512", 32, 32, 64, 512, 0, 2, kv="fp32"),
    *(Shape(f"encoder roberta {n}", 12, 12, 64, n, 0, 4, kv="") for n in (16, 32, 64, 128, 256, 512)),
    Shape("encoder minilm 16x128", 12, 12, 32, 128, 0, 4, sequences=16, kv=""),
)


class Subject:
    """One shape's steps, ready to run."""

    def __init__(self, machine: Runtime, shape: Shape, softmax_keys: int) -> None:
        self.batch = _batch(shape)
        self.pool = None
        if shape.kv:
            blocks = blocks_for(shape.past + shape.tokens)
            self.pool = KVPool(shape.layout, blocks, machine.allocate)
            _fill(self.pool)
        self.executor = NativeExecutor(_plan(shape, softmax_keys), WeightStore({}, {}), machine, self.pool)
        self.executor.run(self.batch, 0, 0)
        self.executor._arena.view(np.float32)[...] = np.random.default_rng(0).standard_normal(
            len(self.executor._arena) // 4, np.float32
        )

    def run(self) -> float:
        start = time.perf_counter()
        self.executor.run(self.batch)
        return time.perf_counter() - start


def _plan(shape: Shape, softmax_keys: int) -> Plan:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    row = Buffer("tokens", 0, 4 * (q + 2 * kv))
    out = Buffer("tokens", row.row_bytes, 4 * q)
    views = (View("q", row, 0, q), View("k", row, q, kv), View("v", row, q + kv, kv))
    attrs = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim, "scale": shape.head_dim**-0.5}
    attrs["softmax_keys"] = softmax_keys
    o = (View("o", out, 0, q),)
    steps = tuple(
        Step("attention", views[:1], o, (), {"layer": layer, **attrs})
        if shape.kv
        else Step("attention_full", views, o, (), attrs)
        for layer in range(shape.layers)
    )
    return Plan(steps, o, {"tokens": row.row_bytes + out.row_bytes, "rows": 0, "sequences": 0}, "fp32")


def _batch(shape: Shape) -> Batch:
    count = shape.tokens * shape.sequences
    positions = np.tile(np.arange(shape.past, shape.past + shape.tokens), shape.sequences).astype(np.int32)
    starts = (np.arange(shape.sequences + 1) * shape.tokens).astype(np.int32)
    context = np.full(shape.sequences, shape.past + shape.tokens, np.int32)
    blocks = blocks_for(shape.past + shape.tokens) if shape.kv else 0
    table = np.random.default_rng(1).permutation(blocks).astype(np.int32)[None].repeat(shape.sequences, axis=0)
    zeros = np.zeros(count, np.int32)
    return Batch(zeros, positions, starts, context, table, starts[1:] - 1, zeros)


def _fill(pool: KVPool) -> None:
    """Random numbers, the same in every block."""
    rng, layout = np.random.default_rng(2), pool.layout
    block = np.empty(layout.block_bytes, np.uint8)
    for part, slot in enumerate(layout.slots):
        raw = np.empty(slot.nbytes, np.uint8)
        for token, row in enumerate(rng.standard_normal((BLOCK_TOKENS, layout.head_dim)).astype(np.float32)):
            slot.write(raw, token, row)
        for layer in range(layout.layers):
            for head in range(layout.kv_heads):
                begin = layout.slot_offset(layer, part, head)
                block[begin : begin + slot.nbytes] = raw
    pool.memory.reshape(-1, layout.block_bytes)[...] = block


def paired(ceiling: Callable[[], float], subject: Subject, amount: float, seconds: float) -> dict[str, float]:
    """Medians of the time and of the share of the ceiling measured around each run."""
    subject.run()
    times: list[float] = []
    shares: list[float] = []
    before = ceiling()
    stop = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        times.append(subject.run())
        after = ceiling()
        shares.append(amount / times[-1] / ((before + after) / 2))
        before = after
    return {"ms": 1e3 * statistics.median(times), "best_ms": 1e3 * min(times), "of_limit": statistics.median(shares)}


def measure(machine: Runtime, probe: Any, shape: Shape, softmax_keys: int, seconds: float) -> dict[str, Any]:
    subject = Subject(machine, shape, softmax_keys)
    decode = shape.kv != "" and shape.tokens == 1
    if decode:
        assert subject.pool is not None
        amount, ceiling = float(subject.pool.memory.nbytes), (lambda: float(probe.read(0.02)))
    else:
        amount, ceiling = 2 * shape.multiply_adds, (lambda: float(probe.f32(0.02)))
    figures = paired(ceiling, subject, amount, seconds)
    limit = "read bandwidth" if decode else "fp32 rate"
    print(
        f"{shape.name:24} {softmax_keys:5} {figures['ms'] / shape.layers:9.4f} ms a layer, best {figures['best_ms'] / shape.layers:9.4f}; "
        f"{figures['of_limit']:6.1%} of the {limit}",
        flush=True,
    )
    return {"shape": shape.name, "softmax_keys": softmax_keys, "layers": shape.layers, "limit": limit, **figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=1.0, help="per shape")
    parser.add_argument("--only", default="", help="shapes whose name has this")
    parser.add_argument("--softmax-keys", nargs="+", type=int, default=[512], help="keys of a chunk; 0: all")
    parser.add_argument("--json", type=Path, help="write the record here")
    options = parser.parse_args()
    machine = runtime(options.threads)
    probe = native.module().LimitProbe(machine.threads, machine.isa)
    print(f"{machine.isa}, {machine.threads} threads")
    chosen = [shape for shape in SHAPES if options.only in shape.name]
    figures = [measure(machine, probe, s, keys, options.seconds) for s in chosen for keys in options.softmax_keys]
    if options.json:
        result = {"isa": machine.isa, "threads": machine.threads, "shapes": figures}
        report.save(options.json.parent, options.json.stem, "python bench/attention.py", result)


if __name__ == "__main__":
    main()
