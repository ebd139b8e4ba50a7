"""WeightStore: the packed weights that plans name. Several plans share one store; a key is packed once, however many steps use it.

Knows which kind a graph wants of each weight and where fused weights lie; how kinds look is packing.py's. A tied embedding is the head's
packed weight: its rows are gathered out of the panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from taut.graph import Graph, Node
from taut.plan.packing import FLOATS, PACKERS, Array, Kind, Packer, Part, layout, num_rows, pack, unpack_floats
from taut.quant.schemes import int4, int8, w8a16

LINEARS = ("linear", "linear_q8", "linear_q4", "qkv_attention")  # ops whose first weight is a linear's
Place = tuple[
    str, int, int
]  # of a weight fused into another: that key, its first row there, rows of each in turn (0: all at once)
Progress = Callable[[str, int, int], None]
ALIGN = 128


class TensorSource(Protocol):
    """Where weights come from."""

    def read(self, key: str) -> Part:
        """The array of a declared key, in its stored dtype; or a weight that is quantized already, whose numbers are packed as they are."""

    def release(self) -> None:
        """What was read so far is packed: its pages may go."""


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
        """The weight as the reference takes it: float32 of `shape`; the pair (q, scale) of int8.Quantized where it is int8, by channel or in
        groups; int4.Quantized of an int4 one. Fused ones are cut out again."""
        home, begin, interleave = self._rows.get(key, (key, 0, 0))
        weight = self._weights[home]
        rows: Any = slice(begin, begin + shape[0])
        if interleave:
            count = weight.shape[0] // shape[0]  # weights of one shape, in turn
            rows = np.arange(shape[0])
            rows = begin + rows // interleave * interleave * count + rows % interleave
        if weight.kind.startswith("q8"):
            assert weight.scale is not None
            n, k = weight.shape
            scale = int8.unpack_scales(weight.scale, n) if weight.scale.ndim == 3 else weight.scale
            return int8.unpack(weight.data, n, k)[rows], scale[rows]
        if weight.kind == "i8":
            assert weight.scale is not None
            whole = w8a16.unpack(weight.data, weight.scale, weight.shape[0])
            return whole.q[rows], whole.scale[rows]
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
    if node.op == "linear":
        return cast(Kind, node.attrs.get("store", "f32"))
    group = node.attrs.get("weight_group", 0)
    return cast(Kind, f"q8g{group}" if group else "q8")


def packed_bytes(kind: Kind, shape: tuple[int, ...]) -> tuple[int, int]:
    """(bytes of data, bytes of scale) of a packed weight."""
    return layout(kind, shape).nbytes


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
    """Read, convert and pack every weight of `graph` into one allocation. `packers`: of q8 (with q8gG and i8) and q4; numpy's where there
    are none."""
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
        made = graph.constants.get(key)
        parts: list[Part] = [made.build(shape[0])] if made else _parts(graph, key, source, rows)
        place = layout(kind, shape)
        data_bytes, scale_bytes = place.nbytes
        data = take(data_bytes, place.dtype, place.shape)
        scale = take(scale_bytes, np.float32, place.scale) if place.scale else None
        pack(kind, parts, _interleave(graph, key), data, scale, {**PACKERS, **(packers or {})}, key)
        packed[key] = PackedWeight(kind, shape, data, scale)
    if progress:
        progress("pack", len(plan), len(plan))
    return WeightStore(packed, rows)


def _parts(graph: Graph, key: str, source: TensorSource, rows: dict[str, Place]) -> list[Part]:
    """The weight, or what was fused into it, whose places are noted in `rows`."""
    parts: list[Part] = []
    begin, interleave = 0, _interleave(graph, key)
    for part in graph.weights[key].sources or (key,):
        parts.append(source.read(part))
        if part != key:
            rows[part] = (key, begin, interleave)
        begin += interleave or num_rows(parts[-1])
    return parts


def _interleave(graph: Graph, key: str) -> int:
    return graph.weights[key].interleave if key in graph.weights else 0
