"""WeightStore: the packed weights that plans name. Several plans share one store; a key is packed once, however many steps use it.

Kinds, by how a weight is used:
    q8      int8 linear: data (panels, K/4, 64, 4) uint8 of q + 128, scale (panels * 64,) float32   (quant/schemes/int8.py)
    q4gG    int4 linear in groups of G: data (panels, K/G, bytes of a group) uint8, scale (panels * 64,) float32 (quant/schemes/int4.py)
    f32     fp32 linear: data (panels, K, 64) float32; f16: the same of float16
    bf16    linear on bfloat16: data (panels, K/2, 64, 2), two inputs side by side as dot products take them, an odd K padded with 0
    vector  gains and biases: data (N padded to 64,) float32
    table   embeddings and constants: data (rows, features) float32
A tied embedding is the head's packed weight: its rows are gathered out of the panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.errors import Float16RangeError, ModelFormatError
from taut.graph import Graph, Node
from taut.quant.schemes import int4, int8

Kind = Literal["q8", "q4g128", "q4g64", "q4g32", "f32", "f16", "bf16", "vector", "table"]
Array = NDArray[Any]
LINEARS = ("linear", "linear_q8", "linear_q4", "qkv_attention")  # ops whose first weight is a linear's
Place = tuple[
    str, int, int
]  # of a weight fused into another: that key, its first row there, rows of each in turn (0: all at once)
Progress = Callable[[str, int, int], None]
PANEL = int8.PANEL
ALIGN = 128
COPIED_TURNS = 8  # of interleaved weights, before they are packed
FLOATS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}  # of a linear that is not quantized


class TensorSource(Protocol):
    """Where weights come from."""

    def read(self, key: str) -> Array:
        """The array of a declared key, in its stored dtype."""

    def release(self) -> None:
        """What was read so far is packed: its pages may go."""


class Packer(Protocol):
    """Quantizes and packs `w` (N, K) into `data` and `scale` in place; the native one equals the numpy one bit for bit."""

    def __call__(self, w: Array, data: NDArray[np.uint8], scale: NDArray[np.float32], name: str) -> None: ...


@dataclass(frozen=True)
class PackedWeight:
    """One packed weight; `shape` is the true (unpadded) shape."""

    kind: Kind
    shape: tuple[int, ...]
    data: Array
    scale: NDArray[np.float32] | None = None

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes + (self.scale.nbytes if self.scale is not None else 0))


class WeightStore:
    """Owns the packed weights, in one arena."""

    def __init__(self, weights: Mapping[str, PackedWeight], rows: Mapping[str, Place]) -> None:
        self._weights = dict(weights)
        self._rows = dict(rows)

    def __getitem__(self, key: str) -> PackedWeight:
        return self._weights[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    @property
    def rows(self) -> dict[str, Place]:
        """Of each key that is fused into another: where its rows lie."""
        return dict(self._rows)

    @property
    def nbytes(self) -> int:
        return sum(weight.nbytes for weight in self._weights.values())

    def logical(self, key: str, shape: tuple[int, ...]) -> Any:
        """The weight as the reference takes it: float32 of `shape`, (q, scale) of an int8 linear, int4.Quantized of an int4 one;
        fused ones are cut out again."""
        home, begin, interleave = self._rows.get(key, (key, 0, 0))
        weight = self._weights[home]
        rows: Any = slice(begin, begin + shape[0])
        if interleave:
            count = weight.shape[0] // shape[0]  # weights of one shape, in turn
            rows = np.arange(shape[0])
            rows = begin + rows // interleave * interleave * count + rows % interleave
        if weight.kind == "q8":
            assert weight.scale is not None
            n, k = weight.shape
            return int8.unpack(weight.data, n, k)[rows], weight.scale[rows]
        if weight.kind.startswith("q4"):
            assert weight.scale is not None
            return int4.unpack(weight.data, weight.scale, *weight.shape).rows(rows)
        if weight.kind in FLOATS:
            return unpack_floats(weight.data, *weight.shape)[rows]
        return weight.data[rows]


def kinds(graph: Graph) -> dict[str, Kind]:
    """How each weight and constant of `graph` is packed."""
    found: dict[str, Kind] = {}
    for node in graph.nodes:
        for index, key in enumerate(node.weights):
            if node.op in LINEARS and index == 0:
                found[key] = _linear_kind(node)
            elif node.op == "embed" or key in graph.constants:
                found.setdefault(key, "table")
            else:
                found[key] = "vector"
    return found


def _linear_kind(node: Node) -> Kind:
    if node.op == "linear_q4" or node.attrs.get("bits") == 4:
        return cast(Kind, f"q4g{node.attrs['group']}")
    return cast(Kind, node.attrs.get("store", "f32") if node.op == "linear" else "q8")


def packed_bytes(kind: Kind, shape: tuple[int, ...]) -> tuple[int, int]:
    """(bytes of data, bytes of scale) of a packed weight."""
    if kind == "vector":
        return 4 * int8.round_up(shape[0], PANEL), 0
    if kind == "table":
        return 4 * shape[0] * shape[1], 0
    n = int8.round_up(shape[0], PANEL)
    if kind.startswith("q4"):
        return math.prod(_q4_shape(kind, shape)), 4 * n
    if kind == "q8":
        return n * int8.round_up(shape[1], 4), 4 * n
    return np.dtype(FLOATS[kind]).itemsize * math.prod(floats_shape(kind, shape)), 0


def floats_shape(kind: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the panels of a linear weight (N, K) that is not quantized."""
    panels = int8.round_up(shape[0], PANEL) // PANEL
    return (panels, (shape[1] + 1) // 2, PANEL, 2) if kind == "bf16" else (panels, shape[1], PANEL)


def _q4_shape(kind: Kind, shape: tuple[int, ...]) -> tuple[int, int, int]:
    return int4.packed_shape(shape[0], shape[1], int(kind.removeprefix("q4g")))


def store_bytes(graph: Graph) -> int:
    """Bytes that the packed weights of `graph` take."""
    return sum(
        int8.round_up(part, ALIGN) for key, kind in kinds(graph).items() for part in packed_bytes(kind, graph.weight_shape(key))
    )


def load(
    graph: Graph,
    source: TensorSource,
    allocate: Callable[[int], NDArray[np.uint8]],
    packers: Mapping[str, Packer] | None = None,
    progress: Progress | None = None,
) -> WeightStore:
    """Read, convert and pack every weight of `graph` into one allocation. `packers`: of q8 and q4; numpy's where there are none."""
    arena, cursor = allocate(store_bytes(graph)), 0

    def take(size: int, dtype: Any, shape: tuple[int, ...]) -> Array:
        nonlocal cursor
        view: Array = arena[cursor : cursor + size].view(dtype).reshape(shape)
        cursor += int8.round_up(size, ALIGN)
        return view

    packed: dict[str, PackedWeight] = {}
    rows: dict[str, Place] = {}
    plan = kinds(graph)
    for done, (key, kind) in enumerate(plan.items()):
        if progress:
            progress("pack", done, len(plan))
        source.release()
        shape = graph.weight_shape(key)
        data_bytes, scale_bytes = packed_bytes(kind, shape)
        parts = [graph.constants[key].build(shape[0])] if key in graph.constants else _parts(graph, key, source, rows)
        if kind.startswith("q"):
            packed_shape = int8.packed_shape(*shape) if kind == "q8" else _q4_shape(kind, shape)
            data, scale = take(data_bytes, np.uint8, packed_shape), take(scale_bytes, np.float32, (-1,))
            _pack_parts(parts, _interleave(graph, key), data, scale, (packers or PACKERS)[kind[:2]], key)
            packed[key] = PackedWeight(kind, shape, data, scale)
        elif kind in FLOATS:
            panels = take(data_bytes, FLOATS[kind], floats_shape(kind, shape))
            pack_floats(np.concatenate(parts), panels, key)
            packed[key] = PackedWeight(kind, shape, panels)
        else:
            flat = take(data_bytes, np.float32, (-1,) if kind == "vector" else shape)
            flat[: shape[0]] = _finite(joined(parts, _interleave(graph, key)).astype(np.float32, copy=False), key)
            packed[key] = PackedWeight(kind, shape, flat)
    if progress:
        progress("pack", len(plan), len(plan))
    return WeightStore(packed, rows)


def _parts(graph: Graph, key: str, source: TensorSource, rows: dict[str, Place]) -> list[Array]:
    """The weight, or what was fused into it, whose places are noted in `rows`."""
    arrays, begin, interleave = [], 0, _interleave(graph, key)
    for part in graph.weights[key].sources or (key,):
        arrays.append(source.read(part))
        if part != key:
            rows[part] = (key, begin, interleave)
        begin += interleave or len(arrays[-1])
    return arrays


def _interleave(graph: Graph, key: str) -> int:
    return graph.weights[key].interleave if key in graph.weights else 0


def joined(parts: list[Array], interleave: int) -> Array:
    """The rows of all parts, one part after the other or `interleave` rows of each in turn."""
    if not interleave:
        return np.concatenate(parts)
    tail = parts[0].shape[1:]
    return np.stack([part.reshape(-1, interleave, *tail) for part in parts], axis=1).reshape(-1, *tail)


def _pack_parts(
    parts: list[Array], interleave: int, data: NDArray[np.uint8], scale: NDArray[np.float32], packer: Packer, key: str
) -> None:
    """Each part into its panels, without a joined copy where the borders of the parts are panels' borders; interleaved ones through
    copies of a few panels."""
    if interleave:
        panels, extra = divmod(len(parts) * interleave, PANEL)  # of one turn
        assert not extra and len({part.shape for part in parts}) == 1
        for turn in range(0, len(parts[0]) // interleave, COPIED_TURNS):
            own = [part[turn * interleave : (turn + COPIED_TURNS) * interleave] for part in parts]
            begin, end = turn * panels, turn * panels + len(own[0]) * len(parts) // PANEL
            packer(joined(own, interleave), data[begin:end], scale[begin * PANEL : end * PANEL], key)
        return
    if any(len(part) % PANEL for part in parts[:-1]):
        parts = [np.concatenate(parts)]
    begin = 0
    for part in parts:
        end = begin + int8.round_up(len(part), PANEL)
        packer(part, data[begin // PANEL : end // PANEL], scale[begin:end], key)
        begin = end


def _finite(w: NDArray[np.float32], key: str) -> NDArray[np.float32]:
    if not np.isfinite(w).all():
        raise ModelFormatError("the weight holds NaN or infinite values; the checkpoint is damaged", field=key)
    return w


def pack_q8(w: Array, data: NDArray[np.uint8], scale: NDArray[np.float32], name: str) -> None:
    """The numpy packer."""
    data[...], scale[...] = int8.pack(*int8.quantize_weight(w, name=name))


def pack_q4(w: Array, data: NDArray[np.uint8], scale: NDArray[np.float32], name: str) -> None:
    """The numpy packer; the shape of `data` says the group."""
    data[...], scale[...] = int4.pack(int4.quantize_weight(w, w.shape[1] // data.shape[1], name=name))


PACKERS: dict[str, Packer] = {"q8": pack_q8, "q4": pack_q4}


def pack_floats(w: Array, panels: Array, name: str = "") -> None:
    """`w` (N, K) into panels of floats_shape, rounded to nearest even, zeros beyond N and K. ModelFormatError for a weight that
    is not finite: damaged; Float16RangeError for one beyond float16."""
    n, k = w.shape
    step = 2 if panels.ndim == 4 else 1  # inputs side by side
    assert len(panels) * PANEL >= n and panels.shape[1] == -(-k // step)
    for index, panel in enumerate(panels):
        part = np.asarray(w[index * PANEL : (index + 1) * PANEL], dtype=np.float32)
        panel[...] = 0
        for first in range(step):
            inputs = part[:, first::step].T
            place = panel[..., first] if step > 1 else panel
            with np.errstate(over="ignore"):
                place[: len(inputs), : len(part)] = inputs
        if not np.isfinite(panel).all():
            largest = np.abs(_finite(part, name)).max()
            raise Float16RangeError(f"a weight of {largest:g} is beyond {panels.dtype}; use precision bf16 or fp32", field=name)


def unpack_floats(panels: Array, n: int, k: int) -> NDArray[np.float32]:
    """The inverse of pack_floats: (N, K)."""
    columns = panels.transpose(0, 2, 1, 3) if panels.ndim == 4 else panels.transpose(0, 2, 1)  # (panels, 64, inputs)
    return np.ascontiguousarray(columns.reshape(len(panels) * PANEL, -1)[:n, :k], dtype=np.float32)
