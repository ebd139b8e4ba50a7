"""The GGUF container: every length, offset and type is checked against the file before it is used.

Knows the format (versions 2 and 3, little-endian) and how to dequantize; does not know what the tensors mean
(gguf_llama.py does). Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.checkpoint.files import MappedFile, describe_content
from taut.checkpoint.tensors import MAX_BYTES, TensorInfo
from taut.errors import ModelFormatError, UnsupportedModelError

MAX_TENSORS = 65_536
MAX_KEYS = 65_536
MAX_KEY_BYTES = 64 << 10
MAX_STRING_BYTES = 64 << 20
MAX_DIMS = 4
MIN_ALIGNMENT, MAX_ALIGNMENT, DEFAULT_ALIGNMENT = 8, 1 << 20, 32
PART_BYTES = 256 << 10  # stored bytes that are dequantized at a time
NUM_THREADS = max(1, min(4, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1))
_ALIGNMENT_KEY = "general.alignment"

_STRING, _ARRAY, _BOOL, _UINT32 = 8, 9, 7, 4
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("<u1"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_PLAIN: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Type id → (name, values per block, bytes per block) of the usual types, so that a file of them alone is opened without the gguf package.
_USUAL: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
_PLAIN_BY_NAME = {dtype.name: dtype for dtype in _PLAIN.values()}


@dataclass(frozen=True)
class StoredTensor:
    """Where one tensor lies. `shape` is row major (ggml's dimensions reversed); `row_bytes` is one innermost row."""

    info: TensorInfo
    type_id: int
    begin: int
    row_bytes: int


class _Cursor:
    """Reads forward through the header; no read passes the end of the file."""

    def __init__(self, file: MappedFile) -> None:
        self._file, self.position = file, 0

    def error(self, message: str, field: str = "") -> ModelFormatError:
        return ModelFormatError(message, file=self._file.name, field=field[:120], offset=self.position)

    @property
    def remaining(self) -> int:
        return self._file.size - self.position

    def take(self, nbytes: int, field: str) -> memoryview:
        if nbytes > self.remaining:
            raise self.error(f"is truncated or corrupt: {nbytes:,} bytes are declared, {self.remaining:,} remain", field)
        start = self.position
        self.position += nbytes
        return self._file.view[start : self.position]

    def u32(self, field: str) -> int:
        return int.from_bytes(self.take(4, field), "little")

    def u64(self, field: str) -> int:
        return int.from_bytes(self.take(8, field), "little")

    def string(self, field: str, limit: int = MAX_STRING_BYTES) -> str:
        length = self.u64(field)
        if length > limit:
            raise self.error(f"declares a string of {length:,} bytes; at most {limit:,} are accepted", field)
        try:
            return str(self.take(length, field), "utf-8")
        except UnicodeDecodeError:
            raise self.error("is not UTF-8", field) from None


class GgufFile:
    """One GGUF file. `metadata` holds scalars, strings, lists of strings and numeric arrays; `stored` the tensors by
    ggml name.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self._file = MappedFile(path, name)
        self.name = self._file.name
        self.metadata: dict[str, Any] = {}
        self.stored: dict[str, StoredTensor] = {}
        try:
            self._parse(_Cursor(self._file))
        except BaseException:
            self._file.close()
            raise

    def read(self, name: str) -> NDArray[Any]:
        """The tensor: a view for F32, F16 and BF16, else dequantized to float32."""
        self._file.check_unchanged()
        tensor = self.stored[name]
        raw = np.frombuffer(self._file.view, np.uint8, count=tensor.info.nbytes, offset=tensor.begin)
        plain = _PLAIN_BY_NAME.get(tensor.info.dtype)
        if plain is not None:
            return raw.view(plain).reshape(tensor.info.shape)
        return _dequantize(raw, tensor)

    def identity(self) -> str:
        return self._file.identity()

    def release_pages(self) -> None:
        self._file.release_pages()

    def close(self) -> None:
        self._file.close()

    def _parse(self, cursor: _Cursor) -> None:
        num_tensors, num_keys = self._read_preamble(cursor)
        for _ in range(num_keys):
            key = cursor.string("key", MAX_KEY_BYTES)
            if not key:
                raise cursor.error("is an empty metadata key", "key")
            if key in self.metadata:
                raise cursor.error("stands twice", key)
            self.metadata[key] = _read_value(cursor, key)
        alignment = self.metadata.get(_ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
        if alignment & (alignment - 1) or not MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT:
            raise cursor.error(
                f"is {alignment}; a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT:,} is accepted", _ALIGNMENT_KEY
            )
        entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
        data_begin = -(-cursor.position // alignment) * alignment
        self._place(entries, data_begin, alignment)

    def _read_preamble(self, cursor: _Cursor) -> tuple[int, int]:
        head = bytes(self._file.view[:512])
        if head[:4] != b"GGUF":
            seems = describe_content(head)
            raise cursor.error(f"is not GGUF but {seems}" if seems else f"is not GGUF: begins with {head[:4]!r}")
        cursor.position = 4
        version = cursor.u32("version")
        if version not in (2, 3):
            if version in (2 << 24, 3 << 24):
                raise cursor.error("is big-endian; convert the model to a little-endian GGUF file", "version")
            raise cursor.error(f"is {version}; versions 2 and 3 are accepted, so convert the model again", "version")
        num_tensors, num_keys = cursor.u64("tensor count"), cursor.u64("key count")
        if num_tensors > MAX_TENSORS:
            raise cursor.error(f"is {num_tensors:,}; at most {MAX_TENSORS:,} are accepted", "tensor count")
        if num_keys > MAX_KEYS:
            raise cursor.error(f"is {num_keys:,}; at most {MAX_KEYS:,} are accepted", "key count")
        return num_tensors, num_keys

    def _place(self, entries: list[tuple[str, tuple[int, ...], int, int]], data_begin: int, alignment: int) -> None:
        """Checks every tensor's bytes against the file and against the others."""
        spans = []
        for name, shape, type_id, offset in entries:
            if name in self.stored:
                raise ModelFormatError("stands twice", file=self.name, field=name)
            type_name, block, block_bytes = _type_row(type_id, self.name, name)
            if shape[-1] % block:
                raise ModelFormatError(
                    f"has rows of {shape[-1]} values; {type_name} needs a multiple of {block}", file=self.name, field=name
                )
            row_bytes = shape[-1] // block * block_bytes
            nbytes = math.prod(shape[:-1]) * row_bytes  # Python integers do not wrap
            begin = data_begin + offset
            if nbytes > MAX_BYTES or begin + nbytes > self._file.size:
                raise ModelFormatError(
                    f"of shape {shape} ends at byte {begin + nbytes:,} of {self._file.size:,} (truncated or corrupt)",
                    file=self.name,
                    field=name,
                )
            if offset % alignment:
                raise ModelFormatError(
                    f"has offset {offset}, not a multiple of the alignment {alignment}", file=self.name, field=name
                )
            plain = _PLAIN.get(type_name)
            info = TensorInfo(shape, plain.name if plain else type_name.lower(), nbytes)
            self.stored[name] = StoredTensor(info, type_id, begin, row_bytes)
            spans.append((begin, begin + nbytes, name))
        spans.sort()
        for (_, end, first), (begin, _, second) in itertools.pairwise(spans):
            if begin < end:
                raise ModelFormatError(f"overlaps {first}", file=self.name, field=second, offset=begin)


def _dequantize(raw: NDArray[np.uint8], tensor: StoredTensor) -> NDArray[np.float32]:
    """float32 of the tensor's shape, in parts that fit a cache, on a few threads (numpy lets go of the interpreter)."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    # Blocks are independent of rows; the package works on 16 rows at a time, which is too little of short ones.
    joined = math.gcd(tensor.info.nbytes // tensor.row_bytes, 8)
    rows = raw.reshape(-1, joined * tensor.row_bytes)
    kind, values = GGMLQuantizationType(tensor.type_id), np.empty(tensor.info.shape, np.float32)
    out = values.reshape(len(rows), -1)
    part = max(1, PART_BYTES // rows.shape[1])

    def fill(begin: int) -> None:
        out[begin : begin + part] = dequantize(rows[begin : begin + part], kind)

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(fill, range(0, len(rows), part)))
    return values


def _read_value(cursor: _Cursor, key: str) -> Any:
    kind = cursor.u32(key)
    if key == _ALIGNMENT_KEY and kind != _UINT32:
        raise cursor.error(f"has value type {kind}; uint32 is accepted", key)
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _read_array(cursor, key)
    dtype = _SCALARS.get(kind)
    if dtype is None:
        raise cursor.error(f"has unknown value type {kind}", key)
    value = np.frombuffer(cursor.take(dtype.itemsize, key), dtype)[0].item()
    if kind != _BOOL:
        return value
    if value > 1:
        raise cursor.error(f"is a bool of value {value}; 0 and 1 are accepted", key)
    return bool(value)


def _read_array(cursor: _Cursor, key: str) -> list[str] | NDArray[Any]:
    kind, count = cursor.u32(key), cursor.u64(key)
    if kind == _ARRAY:
        raise cursor.error("is an array of arrays; only flat arrays are accepted", key)
    dtype = _SCALARS.get(kind)
    itemsize = 8 if kind == _STRING else dtype.itemsize if dtype is not None else 0  # a string takes its 8-byte length at least
    if not itemsize:
        raise cursor.error(f"is an array of unknown value type {kind}", key)
    if count > cursor.remaining // itemsize:
        raise cursor.error(f"declares {count:,} elements, only {cursor.remaining:,} bytes remain", key)
    if dtype is None:
        return _read_strings(cursor, key, count)
    values: NDArray[Any] = np.frombuffer(cursor.take(count * itemsize, key), dtype).copy()
    return values


def _read_strings(cursor: _Cursor, key: str, count: int) -> list[str]:
    """As `_Cursor.string`, `count` times; written out because a vocabulary has hundreds of thousands."""
    view, size, position = cursor._file.view, cursor._file.size, cursor.position
    length_of = struct.Struct("<Q").unpack_from
    found = []
    fault = ""
    try:
        for _ in range(count):
            if position + 8 > size:
                fault = "is truncated or corrupt"
                break
            (length,) = length_of(view, position)
            begin = position + 8
            if length > size - begin or length > MAX_STRING_BYTES:
                fault = f"declares a string of {length:,} bytes, {size - begin:,} remain"
                break
            found.append(str(view[begin : begin + length], "utf-8"))
            position = begin + length
    except UnicodeDecodeError:
        fault = "holds a string that is not UTF-8"
    cursor.position = position
    if fault:
        raise cursor.error(fault, key)
    return found


def _read_tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """(name, row-major shape, type id, offset in the data)."""
    name = cursor.string("tensor name", MAX_KEY_BYTES)
    if not name:
        raise cursor.error("is an empty tensor name", "tensor name")
    num_dims = cursor.u32(name)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(f"has {num_dims} dimensions; 1 to {MAX_DIMS} are accepted", name)
    dims = struct.unpack(f"<{num_dims}q", cursor.take(8 * num_dims, name))
    if any(dim <= 0 for dim in dims):
        raise cursor.error(f"has dimensions {dims}; each must be at least 1", name)
    return name, dims[::-1], cursor.u32(name), cursor.u64(name)


def _type_row(type_id: int, file: str, tensor: str) -> tuple[str, int, int]:
    """(name, values per block, bytes per block) of a ggml type that can be dequantized."""
    if type_id in _USUAL:
        return _USUAL[type_id]
    row = _type_table().get(type_id)
    if row is None:
        known = ", ".join(name for name, _, _, _ in _type_table().values() if name)
        raise ModelFormatError(f"has ggml type id {type_id}; known are {known}", file=file, field=tensor)
    name, block, block_bytes, is_supported = row
    if not is_supported:
        accepted = ", ".join(name for name, _, _, is_supported in _type_table().values() if is_supported)
        raise UnsupportedModelError(f"{file}, tensor {tensor}: ggml type {name} cannot be read; accepted are {accepted}")
    return name, block, block_bytes


@functools.cache
def _type_table() -> dict[int, tuple[str, int, int, bool]]:
    """ggml type id → (name, values per block, bytes per block, whether gguf.quants dequantizes it), from the gguf package."""
    from gguf import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    table = {}
    for kind, (block, block_bytes) in GGML_QUANT_SIZES.items():
        is_supported = kind.name in _PLAIN
        if not is_supported:
            try:
                dequantize(np.zeros((1, block_bytes), np.uint8), kind)
                is_supported = True
            except NotImplementedError:
                pass
        table[int(kind)] = (kind.name, block, block_bytes, is_supported)
    return table
