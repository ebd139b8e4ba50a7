"""The typed face of taut._native: whether it is built, which ISA it runs, memory and threads. Works, and says why not, without it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from taut.errors import HardwareError, ModelFormatError

Operand = tuple[int, int, int, int, int]  # space, offset, row_bytes, column_bytes, features


class Memory(Protocol):
    """Zeroed memory at a 2 MiB boundary, committed on first touch; it lives as long as this object or an array of it."""

    @property
    def address(self) -> int: ...

    @property
    def size(self) -> int: ...

    def array(self) -> NDArray[np.uint8]: ...

    def discard(self, begin: int, bytes: int) -> None: ...


class ThreadPool(Protocol):
    """Persistent compute threads; the caller is one of `size`."""

    @property
    def size(self) -> int: ...

    @property
    def active(self) -> int:
        """Threads that take part, the caller among them."""

    def set_active(self, threads: int) -> None:
        """How many threads take part from the next job on, 1 to `size`."""

    def set_nice(self, value: int) -> bool:
        """The workers' nice value; False when the system refuses."""

    def count_items(self, count: int, fail_at: int = -1) -> int: ...

    def burn(self, jobs: int, items: int, rounds: int) -> float:
        """Seconds that `jobs` jobs of `items` items of `rounds` multiplications take (tests)."""


class Program(Protocol):
    """A lowered plan."""

    def add(
        self,
        op: str,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        weights: Sequence[int],
        ints: Mapping[str, int],
        floats: Mapping[str, float],
        lists: Mapping[str, Sequence[int]],
    ) -> None: ...

    def run(
        self, arrays: Sequence[Any], arena: NDArray[np.uint8], first: int, last: int, abort: NDArray[np.int32] | None = None
    ) -> bool: ...

    def counts(self) -> list[list[int]]:
        """What each step has counted since the last reset, one number for each of counters()."""

    def totals(self) -> list[int]:
        """The same of all steps together."""

    def reset_counts(self) -> None: ...


def is_built() -> bool:
    """Whether the native module is there; one that is there and broken still fails loudly when used."""
    return importlib.util.find_spec("taut._native") is not None


def module() -> ModuleType:
    """taut._native; HardwareError when it was not built."""
    if not is_built():
        raise HardwareError("the native core is not built; install taut from a wheel, or build it with `pip install .`")
    return importlib.import_module("taut._native")


def runnable_isas() -> list[str]:
    """ISAs that this machine can run, plainest first."""
    return cast("list[str]", module().runnable_isas())


def select_isa(isa: str = "") -> str:
    """The ISA that runs: `isa`, else the one that TAUT_ISA forces, else the widest. HardwareError when it cannot run here."""
    native = module()
    try:
        return cast(str, native.select_isa(isa))
    except native.IsaError as error:
        raise HardwareError(
            f"{error}; this machine runs {', '.join(runnable_isas())}: unset TAUT_ISA or choose one of them"
        ) from None


def counters() -> list[str]:
    """The kinds of things that steps count: values that a norm's clamp caught ("clamped"), attention scores beyond their limit ("scores"),
    rows that static quantization left to dynamic ("fallback"), rows of a norm that are not finite ("nonfinite")."""
    return cast("list[str]", module().COUNTERS)


def memory(size: int, *, huge_pages: bool = True) -> Memory:
    """`size` bytes; MemoryError when the system refuses."""
    return cast(Memory, module().Memory(max(size, 1), huge_pages))


def thread_pool(num_threads: int) -> ThreadPool:
    return cast(ThreadPool, module().ThreadPool(num_threads))


def program(isa: str, pool: ThreadPool, space_bytes: Sequence[int], kv: Mapping[str, int]) -> Program:
    """An empty program; `space_bytes` are arena bytes per token, row and sequence, `kv` the pool's address and geometry or empty."""
    return cast(Program, module().Program(isa, pool, list(space_bytes), dict(kv)))


def sample(logits: NDArray[np.float32], choices: NDArray[np.float64], pool: ThreadPool, isa: str = "") -> NDArray[np.int32]:
    """Token ids of the rows of `logits` (rows, vocab), -1 where a logit is not finite. `choices` (rows, 5): temperature, top_k, top_p,
    min_p, and a number drawn from [0, 1)."""
    ids = np.empty(len(logits), np.int32)
    module().sample(logits, choices, ids, pool, isa)
    return ids


def hash_chunks(data: NDArray[np.uint8], chunk_bytes: int, pool: ThreadPool) -> list[int]:
    """A fast 64-bit hash of every chunk of `data`; against accidents, not attackers."""
    return cast("list[int]", module().hash_chunks(data, chunk_bytes, pool))


def read_chunks(file: int, offset: int, data: NDArray[np.uint8], chunk_bytes: int, pool: ThreadPool) -> list[int]:
    """Fills `data` from the file descriptor on all threads; its hash_chunks. RuntimeError when the file ends early or fails."""
    return cast("list[int]", module().read_chunks(file, offset, data, chunk_bytes, pool))


SOURCES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}  # by numpy's name


def pack_q8(w: NDArray[Any], data: NDArray[Any], scale: NDArray[np.float32], name: str, pool: ThreadPool | None = None) -> None:
    """Quantizes and packs `w` (N, K) of any float type into `data` and `scale`, bit for bit as quant/schemes/int8.py does: scales
    (panels, K / G, 64) are of groups of G inputs, and data (panels, K, 64) is int8 for w8a16.

    Raises ModelFormatError naming `name` when a weight is NaN or infinite.
    """
    weight_group = w.shape[1] // scale.shape[1] if scale.ndim == 3 else 0
    by_input = data.ndim == 3
    _pack(w, data.view(np.uint8), scale.reshape(-1), name, pool, weight_group=weight_group, by_input=by_input)


def pack_q4(
    w: NDArray[Any], data: NDArray[np.uint8], column: NDArray[np.float32], name: str, pool: ThreadPool | None = None
) -> None:
    """As pack_q8, to quant/schemes/int4.py; `data` has its packed_shape, which says the group."""
    group = w.shape[1] // data.shape[1]
    _pack(w, data.reshape(-1), column, name, pool, group=group)


def _pack(w: NDArray[Any], data: NDArray[np.uint8], scale: NDArray[np.float32], name: str, pool: Any, **form: int) -> None:
    source = SOURCES.get(w.dtype.name)
    if source is None or w.strides[1] != w.itemsize:
        w, source = np.ascontiguousarray(w, dtype=np.float32), "f32"
    try:
        module().pack(w if source == "f32" else w.view(np.uint16), source, data, scale, pool=pool, **form)
    except ValueError as error:
        raise ModelFormatError(f"{error}: check the checkpoint, or convert it again", field=name) from None
