"""Packing: the parts of one weight into the panels that kernels read. Kinds, by how a weight is used:

    q8      int8 linear: data (panels, K/4, 64, 4) uint8 of q + 128, scale (panels * 64,) float32   (quant/schemes/int8.py)
    q8gG    the same in groups of G inputs: scale (panels, K/G, 64)
    q4gG    int4 linear in groups of G: data (panels, K/G, bytes of a group) uint8, scale (panels * 64,) float32 (quant/schemes/int4.py)
    i8      fp32 linear on int8 weights: data (panels, K, 64) int8, scale (panels * 64,)   (quant/schemes/w8a16.py)
    f32     fp32 linear: data (panels, K, 64) float32; f16: the same of float16
    bf16    linear on bfloat16: data (panels, K/2, 64, 2), two inputs side by side as dot products take them, an odd K padded with 0
    vector  gains and biases: data (N padded to 64,) float32
    table   embeddings and constants: data (rows, features) float32

A part is an array of floats, or a weight that is quantized already, whose numbers are kept. Knows no graph and not where weights come from.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.errors import Float16RangeError, ModelFormatError
from taut.quant.schemes import int4, int8, w8a16

Kind = Literal[
    "q8", "q8g128", "q8g64", "q8g32", "q4g128", "q4g64", "q4g32", "i8", "f32", "f16", "bf16", "vector", "table"
]  # fmt: skip
Array = NDArray[Any]
Quantized = int8.Quantized | int4.Quantized
Part = Array | Quantized
PANEL = int8.PANEL
FLOATS: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}  # of a linear that is not quantized
COPIED_TURNS = 8  # of interleaved weights, before they are packed
COPIED_PANELS = 64  # of weights that were quantized before


class Packer(Protocol):
    """Quantizes and packs `w` (N, K) into `data` and `scale` in place, whose shapes say the layout; the native one equals the numpy one
    bit for bit."""

    def __call__(self, w: Array, data: Array, scale: NDArray[np.float32], name: str) -> None: ...


@dataclass(frozen=True)
class Layout:
    """Of a packed weight: the type and shape of its data, the shape of its scales."""

    dtype: Any
    shape: tuple[int, ...]
    scale: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> tuple[int, int]:
        """Of data, of scales."""
        return np.dtype(self.dtype).itemsize * math.prod(self.shape), 4 * math.prod(self.scale) if self.scale else 0


def group_of(kind: str) -> int:
    """Inputs that share a scale of a quantized kind; 0: all of a row."""
    return int(kind.partition("g")[2] or 0) if kind.startswith("q") else 0


def layout(kind: str, shape: tuple[int, ...]) -> Layout:
    """How a weight of `shape` is packed."""
    panels = int8.round_up(shape[0], PANEL) // PANEL
    if kind == "vector":
        return Layout(np.float32, (panels * PANEL,))
    if kind == "table":
        return Layout(np.float32, shape)
    n, k = shape
    group = group_of(kind)
    if kind.startswith("q4"):
        return Layout(np.uint8, int4.packed_shape(n, k, group), (panels * PANEL,))
    if kind.startswith("q8"):
        return Layout(np.uint8, int8.packed_shape(n, k), (panels, k // group, PANEL) if group else (panels * PANEL,))
    if kind == "i8":
        return Layout(np.int8, w8a16.packed_shape(n, k), (panels * PANEL,))
    return Layout(FLOATS[kind], (panels, (k + 1) // 2, PANEL, 2) if kind == "bf16" else (panels, k, PANEL))


def num_rows(part: Part) -> int:
    if isinstance(part, int8.Quantized):
        return len(part.q)
    return len(part.u) if isinstance(part, int4.Quantized) else len(part)


def floats(part: Part) -> Array:
    """The numbers of a part, quantized or not."""
    if isinstance(part, int8.Quantized):
        return part.dequantized()
    return int4.dequantize(part) if isinstance(part, int4.Quantized) else part


def joined(parts: list[Array], interleave: int) -> Array:
    """The rows of all parts, one part after the other or `interleave` rows of each in turn."""
    if not interleave:
        return np.concatenate(parts)
    tail = parts[0].shape[1:]
    return np.stack([part.reshape(-1, interleave, *tail) for part in parts], axis=1).reshape(-1, *tail)


def pack(
    kind: Kind, parts: list[Part], interleave: int, data: Array, scale: Array | None, packers: Mapping[str, Packer], key: str
) -> None:
    """The parts of the weight `key` into `data` and `scale` of layout(kind, ...)."""
    if scale is None:
        whole = joined([floats(part) for part in parts], interleave)
        if kind in FLOATS:
            return pack_floats(whole, data, key)
        data[: len(whole)] = _finite(whole.astype(np.float32, copy=False), key)
        return None
    if any(isinstance(part, Quantized) for part in parts):
        return _pack_quantized(kind, [_of_kind(part, kind, key) for part in parts], interleave, data, scale)
    arrays = [floats(part) for part in parts]
    return _pack_floats_quantized(arrays, interleave, data, scale, packers["q4" if kind.startswith("q4") else "q8"], key)


def _pack_floats_quantized(parts: list[Array], interleave: int, data: Array, scale: Array, packer: Packer, key: str) -> None:
    """Each part into its panels, without a joined copy where the borders of the parts are panels' borders; interleaved ones through
    copies of a few panels."""
    scales = len(scale) // len(data)  # entries of a panel along the first axis: 64, or 1 of groups
    if interleave:
        panels, extra = divmod(len(parts) * interleave, PANEL)  # of one turn
        assert not extra and len({part.shape for part in parts}) == 1
        for turn in range(0, len(parts[0]) // interleave, COPIED_TURNS):
            own = [part[turn * interleave : (turn + COPIED_TURNS) * interleave] for part in parts]
            begin, end = turn * panels, turn * panels + len(own[0]) * len(parts) // PANEL
            packer(joined(own, interleave), data[begin:end], scale[begin * scales : end * scales], key)
        return
    if any(len(part) % PANEL for part in parts[:-1]):
        parts = [np.concatenate(parts)]
    begin = 0
    for part in parts:
        end = begin + int8.round_up(len(part), PANEL) // PANEL
        packer(part, data[begin:end], scale[begin * scales : end * scales], key)
        begin = end


def _of_kind(part: Part, kind: str, key: str) -> Quantized:
    """The part as `kind` has it: one of floats is quantized, one that is quantized must be so already."""
    group, is_int4 = group_of(kind), kind.startswith("q4")
    if not isinstance(part, Quantized):
        return int4.quantize_weight(part, group, name=key) if is_int4 else int8.quantize_groups(part, group, name=key)
    if isinstance(part, int4.Quantized) != is_int4 or part.group != group:
        own = f"int{4 if isinstance(part, int4.Quantized) else 8} {_in_groups(part.group)}"
        raise ModelFormatError(
            f"the weight is stored as {own}, and the plan packs it as int{4 if is_int4 else 8} {_in_groups(group)}; "
            "run the model in the formats that it was quantized to",
            field=key,
        )
    return part


def _in_groups(group: int) -> str:
    return f"in groups of {group}" if group else "by output channel"


def _pack_quantized(kind: str, parts: list[Quantized], interleave: int, data: Array, scale: Array) -> None:
    fields = [[getattr(part, field.name) for part in parts] for field in dataclasses.fields(parts[0])]
    whole: Any = type(parts[0])(*(joined(arrays, interleave) for arrays in fields))
    scales = len(scale) // len(data)
    for begin in range(0, len(data), COPIED_PANELS):
        end = min(begin + COPIED_PANELS, len(data))
        rows = whole.rows(slice(begin * PANEL, end * PANEL))
        data[begin:end], scale[begin * scales : end * scales] = arranged(kind, rows)


def arranged(kind: str, w: Any) -> tuple[Array, Array]:
    """A quantized weight as the kernels of `kind` read it."""
    if kind.startswith("q4"):
        return int4.pack(w)
    if kind == "i8":
        return w8a16.pack(w)
    return int8.pack_groups(w) if group_of(kind) else int8.pack(w.q, w.scale)


def pack_q8(w: Array, data: Array, scale: NDArray[np.float32], name: str) -> None:
    """The numpy packer of q8, q8gG and i8."""
    groups = scale.shape[1] if scale.ndim == 3 else 0
    kind = "i8" if data.ndim == 3 else f"q8g{w.shape[1] // groups}" if groups else "q8"
    data[...], scale[...] = arranged(kind, int8.quantize_groups(w, group_of(kind), name=name))


def pack_q4(w: Array, data: Array, scale: NDArray[np.float32], name: str) -> None:
    """The numpy packer of q4gG."""
    data[...], scale[...] = int4.pack(int4.quantize_weight(w, w.shape[1] // data.shape[1], name=name))


PACKERS: dict[str, Packer] = {"q8": pack_q8, "q4": pack_q4}


def _finite(w: NDArray[np.float32], key: str) -> NDArray[np.float32]:
    if not np.isfinite(w).all():
        raise ModelFormatError("the weight holds NaN or infinite values; the checkpoint is damaged", field=key)
    return w


def pack_floats(w: Array, panels: Array, name: str = "") -> None:
    """`w` (N, K) into panels of a float kind, rounded to nearest even, zeros beyond N and K. ModelFormatError for a weight that
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
