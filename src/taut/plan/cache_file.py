"""One file of packed weights: written whole or not at all, read on all threads, believed only when everything about it is right.

Format: MAGIC, version, length and hash of a JSON header, the header, zeros up to a multiple of ALIGN, then the weights' memory as it
was. The header says where each weight lies and holds a hash of every chunk. Packed weights are the same on every instruction set.
Knows files and packed weights; not which file belongs to which model, nor when one is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.kernels import native
from taut.plan.weights import PackedWeight, WeightStore, packed_bytes
from taut.quant.schemes import int8

MAGIC, VERSION = b"tautpack", 2
ALIGN = 4096
CHUNK_BYTES = 4 << 20
MAX_HEADER_BYTES = 32 << 20
SLICE_BYTES = 8 << 20  # of one write
DTYPES: dict[str, Any] = {
    "uint8": np.uint8, "int8": np.int8, "float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16
}  # fmt: skip
_PREAMBLE = struct.Struct("<8sII16s")  # MAGIC, version, header bytes, header hash

Bytes = NDArray[np.uint8]
Expected = Mapping[str, tuple[str, tuple[int, ...]]]  # weight key -> kind, shape


class UnusableFileError(Exception):
    """Why a file is not used; never shown but in a log line."""


def write(path: Path, key: str, arena: Bytes, store: WeightStore, pool: native.ThreadPool) -> None:
    """Writes `store`, whose arrays lie in `arena`, to `path` in one step: until all of it is on the disk there is no file of this
    name, or the one of before. OSError when that fails; nothing is left then."""
    header = json.dumps(
        {
            "key": key,
            "bytes": arena.nbytes,
            "weights": [[name, *_describe(store[name], arena)] for name in store],
            "rows": store.rows,
            "chunks": native.hash_chunks(arena, CHUNK_BYTES, pool),
        }
    ).encode()
    data_begin = int8.round_up(_PREAMBLE.size + len(header), ALIGN)
    head = (_PREAMBLE.pack(MAGIC, VERSION, len(header), _digest(header)) + header).ljust(data_begin, b"\0")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(file, "wb", buffering=0) as out:
            os.posix_fallocate(out.fileno(), 0, data_begin + arena.nbytes)  # a full disk says so before anything is written
            _write_all(out.fileno(), memoryview(head))
            for begin in range(0, arena.nbytes, SLICE_BYTES):
                _write_all(out.fileno(), arena[begin : begin + SLICE_BYTES].data)
            os.fsync(out.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def read(path: Path, key: str, expected: Expected, allocate: Callable[[int], Bytes], pool: native.ThreadPool) -> WeightStore:
    """The store that `path` holds. FileNotFoundError when there is none, UnusableFileError when anything about it is not as it must
    be: owner, type, version, key, sizes, places, hashes."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UnusableFileError(f"cannot be opened: {error.strerror}") from None
    try:
        return _read(file, key, expected, allocate, pool)
    except OSError as error:
        raise UnusableFileError(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(file)


def _read(file: int, key: str, expected: Expected, allocate: Callable[[int], Bytes], pool: native.ThreadPool) -> WeightStore:
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid not in (os.geteuid(), 0):
        raise UnusableFileError("is no regular file of this user")
    header, data_begin = _read_header(file, status.st_size)
    if header.get("key") != key:
        raise UnusableFileError("is of another model")
    try:
        size, chunks = int(header["bytes"]), list(header["chunks"])
        if status.st_size != data_begin + size:
            raise UnusableFileError(f"has {status.st_size:,} bytes instead of {data_begin + size:,}")
        _check_places(header["weights"], expected, size)
        arena = allocate(size)
        try:
            found = native.read_chunks(file, data_begin, arena, CHUNK_BYTES, pool)
        except RuntimeError as error:
            raise UnusableFileError(str(error)) from None
        if found != chunks:
            raise UnusableFileError("does not have the bytes that were written: a hash differs")
        weights = {name: _weight(arena, kind, tuple(shape), *places) for name, kind, shape, *places in header["weights"]}
        return WeightStore(
            weights, {name: (str(home), int(row), int(turn)) for name, (home, row, turn) in header["rows"].items()}
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnusableFileError(f"has a header that makes no sense: {error}") from None


def _read_header(file: int, size: int) -> tuple[dict[str, Any], int]:
    preamble = os.pread(file, _PREAMBLE.size, 0)
    if len(preamble) < _PREAMBLE.size:
        raise UnusableFileError("is truncated")
    magic, version, header_bytes, digest = _PREAMBLE.unpack(preamble)
    if magic != MAGIC or version != VERSION:
        raise UnusableFileError("has another format or version")
    if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, size):
        raise UnusableFileError(f"states a header of {header_bytes:,} bytes")
    raw = os.pread(file, header_bytes, _PREAMBLE.size)
    if len(raw) != header_bytes or _digest(raw) != digest:
        raise UnusableFileError("has a damaged header")
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise UnusableFileError("has a header that is no JSON object")
    return header, int8.round_up(_PREAMBLE.size + header_bytes, ALIGN)


def _check_places(entries: Any, expected: Expected, size: int) -> None:
    """Exactly the expected weights, each of its size and inside the memory."""
    if {entry[0]: (entry[1], tuple(entry[2])) for entry in entries} != dict(expected) or len(entries) != len(expected):
        raise UnusableFileError("holds other weights than the model has")
    for _, kind, shape, data, scale in entries:
        wanted = packed_bytes(kind, tuple(shape))
        spans = [_span(data), _span(scale) if scale is not None else (0, 0)]
        if tuple(nbytes for _, nbytes in spans) != wanted:
            raise UnusableFileError("holds a weight of a wrong size")
        if any(begin < 0 or begin % 64 or begin + nbytes > size for begin, nbytes in spans):
            raise UnusableFileError("places a weight outside its memory")


def _span(place: Any) -> tuple[int, int]:
    begin, dtype, shape = place
    if any(type(value) is not int or value < 0 for value in (begin, *shape)):
        raise UnusableFileError("has a place that is no number")
    return begin, np.dtype(DTYPES[dtype]).itemsize * int(np.prod(shape, dtype=object))


def _weight(arena: Bytes, kind: Any, shape: tuple[int, ...], data: Any, scale: Any) -> PackedWeight:
    return PackedWeight(kind, shape, _view(arena, data), None if scale is None else _view(arena, scale))


def _view(arena: Bytes, place: Any) -> NDArray[Any]:
    begin, nbytes = _span(place)
    view: NDArray[Any] = arena[begin : begin + nbytes].view(DTYPES[place[1]]).reshape(place[2])
    return view


def _describe(weight: PackedWeight, arena: Bytes) -> list[Any]:
    """kind, shape and the places of data and scale: offset in the arena, dtype and shape."""

    def place(array: NDArray[Any]) -> list[Any]:
        begin = array.ctypes.data - arena.ctypes.data
        assert 0 <= begin <= arena.nbytes - array.nbytes, "every packed weight lies in the arena"
        return [begin, array.dtype.name, list(array.shape)]

    return [weight.kind, list(weight.shape), place(weight.data), None if weight.scale is None else place(weight.scale)]


def _digest(header: bytes) -> bytes:
    return hashlib.blake2b(header, digest_size=16).digest()


def _write_all(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
