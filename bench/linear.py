"""The int8 or int4 linear alone: percent of the int8 peak for prefill shapes, percent of read bandwidth for 1..16 rows.

    python bench/linear.py [--bits 8|4] [--group 128] [--weight-groups] [--threads N] [--seconds S] [--json FILE]

"Of the limit" is of the int8 rate in prefill (int4 on AVX2 sums in 16 bits and may pass it), of the read bandwidth in decode. Both are
measured just before and after every repetition, in this process, on the same threads; the figures are medians of the paired ratios.
Beside the share by wall clock stands the share of the time that the threads really had ("on CPU"), which a busy machine lowers less.
Decode weights exceed 256 MB in total, so that they come from memory.
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
from numpy.typing import NDArray

from taut.bench import report
from taut.engine.runtime import Runtime, runtime
from taut.kernels import native
from taut.quant.schemes import int4, int8

PREFILL = ((512, 2048, 6144), (512, 2048, 16384), (512, 2048, 2048), (512, 8192, 2048))  # rows, K, N
DECODE_ROWS = (1, 2, 4, 8, 16)
DECODE_SHAPE = (2048, 6144)
DECODE_BYTES = 300 << 20


@dataclass(frozen=True)
class Format:
    """int8 weights with activations in groups, the weights too where `weight_groups`; or int4 weights in the same groups."""

    bits: int
    group: int
    weight_groups: bool = False

    def packed(self, n: int, k: int) -> NDArray[np.uint8]:
        """Random weights (n, k) as the kernels read them."""
        rng = np.random.default_rng(0)
        if self.bits == 8:
            return rng.integers(1, 256, n * k, dtype=np.uint8)
        w = rng.standard_normal((64, k), np.float32)
        one = int4.pack(int4.quantize_weight(w, self.group))[0].reshape(-1)
        return np.tile(one, n // 64)


class Linear:
    """Quantized rows and `copies` packed weights, all in huge pages."""

    def __init__(self, machine: Runtime, format: Format, rows: int, k: int, n: int, copies: int = 1) -> None:
        self.machine, self.format, self.cut = machine, format, int8.pieces(k, format.group)
        rng = np.random.default_rng(0)
        self.layout = int8.row_layout(k, format.group)
        laid_out = int8.write_rows(*int8.quantize_rows(rng.standard_normal((rows, k), np.float32), format.group), self.layout)
        self.x = self._huge(laid_out)
        packed = format.packed(n, k)
        self.w = machine.allocate(copies * packed.nbytes).reshape(copies, -1)
        self.w[...] = packed
        self.w_scale = np.full(n * (k // format.group if format.weight_groups else 1), 1e-3, np.float32)
        self.y = self.machine.allocate(4 * rows * n).view(np.float32).reshape(rows, n)

    def _huge(self, array: NDArray[Any]) -> NDArray[Any]:
        copy = self.machine.allocate(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy

    def run(self) -> tuple[float, float]:
        """(wall seconds, CPU seconds per thread) of one product with every copy of the weights."""
        begin, segment, rows = list(self.cut.begin), list(self.cut.segment), [0, len(self.y)]
        start, cpu = time.perf_counter(), time.process_time()
        for w in self.w:
            native.module().linear(
                self.x, self.layout.row_bytes, self.layout.scales_offset, begin, segment, w, self.w_scale, None, self.y,
                rows=rows, group=0 if self.format.bits == 8 else self.format.group,
                weight_group=self.format.group if self.format.weight_groups else 0, pool=self.machine.pool, isa=self.machine.isa,
            )  # fmt: skip
        return time.perf_counter() - start, (time.process_time() - cpu) / self.machine.threads


def paired(ceiling: Callable[[], float], linear: Linear, amount: float, seconds: float) -> dict[str, float]:
    """Rates of `amount` per run over the ceiling around each run: medians, and the best of both."""
    wall: list[float] = []
    on_cpu: list[float] = []
    rates: list[float] = []
    ceilings = [ceiling()]
    stop = time.perf_counter() + seconds
    while len(rates) < 3 or time.perf_counter() < stop:
        took, cpu = linear.run()
        ceilings.append(ceiling())
        around = (ceilings[-2] + ceilings[-1]) / 2
        rates.append(amount / took)
        wall.append(amount / took / around)
        on_cpu.append(amount / cpu / around)
    medians = {"of_limit": statistics.median(wall), "of_limit_on_cpu": statistics.median(on_cpu)}
    return {**medians, "best": max(rates), "best_limit": max(ceilings)}


def show(name: str, figures: dict[str, float], scale: float, unit: str) -> None:
    shares = f"{figures['of_limit']:6.1%} of the limit, {figures['of_limit_on_cpu']:6.1%} on CPU"
    print(f"{name:18} {shares}; best {figures['best'] / scale:.3g} of {figures['best_limit'] / scale:.3g} {unit}", flush=True)


def prefill(machine: Runtime, format: Format, probe: Any, seconds: float) -> list[dict[str, Any]]:
    records = []
    for rows, k, n in PREFILL:
        figures = paired(lambda: float(probe.int8(0.02)), Linear(machine, format, rows, k, n), 2.0 * rows * k * n, seconds)
        records.append({"rows": rows, "k": k, "n": n, **figures})
        show(f"{rows} x {k} x {n}", figures, 1e12, "TOP/s")
    return records


def decode(machine: Runtime, format: Format, probe: Any, seconds: float) -> list[dict[str, Any]]:
    records = []
    k, n = DECODE_SHAPE
    copies = -(-DECODE_BYTES // format.packed(n, k).nbytes)
    for rows in DECODE_ROWS:
        linear = Linear(machine, format, rows, k, n, copies)
        nbytes = float(linear.w.nbytes + copies * linear.w_scale.nbytes)
        figures = paired(lambda: float(probe.read(0.02)), linear, nbytes, seconds)
        records.append({"rows": rows, "k": k, "n": n, **figures})
        show(f"{rows} rows", figures, 1e9, "GB/s")
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8)
    parser.add_argument("--group", type=int, choices=int4.GROUPS, default=128)
    parser.add_argument("--weight-groups", action="store_true", help="scales of the int8 weights are of the groups too")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float, default=2.0, help="per shape")
    parser.add_argument("--json", type=Path, help="write the record here")
    options = parser.parse_args()
    machine = runtime(options.threads)
    probe = native.module().LimitProbe(machine.threads, machine.isa)
    if options.weight_groups and options.bits != 8:
        parser.error("--weight-groups is for int8; int4 weights always are in groups")
    print(f"{machine.isa}, {machine.threads} threads, int{options.bits}, groups of {options.group}")
    format = Format(options.bits, options.group, options.weight_groups)
    result = {
        "isa": machine.isa,
        "threads": machine.threads,
        "bits": format.bits,
        "group": format.group,
        "weight_groups": format.weight_groups,
        "prefill": prefill(machine, format, probe, options.seconds),
        "decode": decode(machine, format, probe, options.seconds),
    }
    if options.json:
        report.save(options.json.parent, options.json.stem, "python bench/linear.py", result)


if __name__ == "__main__":
    main()
