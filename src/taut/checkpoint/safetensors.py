"""safetensors files, single and sharded: every rule of the header is checked, then tensors are views of the mapped file.

Format: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint import strict_json
from taut.checkpoint.files import MappedFile, describe_content, is_plain_name, safe_path
from taut.checkpoint.tensors import MAX_BYTES, MAX_DIMS, SAFETENSORS_DTYPES, TensorInfo
from taut.errors import ModelError, ModelFormatError
from taut.units import counted

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 100_000
MAX_METADATA_BYTES = 1 << 20
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"


class SafetensorsFile:
    """One file. `tensors` maps each name to its TensorInfo; `read` returns a read-only view, no copy."""

    def __init__(self, path: Path, name: str = "") -> None:
        self._file = MappedFile(path, name)
        self.name = self._file.name
        self.tensors: dict[str, TensorInfo] = {}
        self._begin: dict[str, int] = {}  # absolute byte offset
        try:
            self._parse()
        except BaseException:
            self._file.close()
            raise

    def read(self, name: str) -> NDArray[Any]:
        self._file.check_unchanged()
        info = self.tensors[name]
        dtype = _NUMPY[info.dtype]
        flat = np.frombuffer(self._file.view, dtype, count=math.prod(info.shape), offset=self._begin[name])
        return flat.reshape(info.shape)

    def offset(self, name: str) -> int:
        """Where the tensor's bytes begin in the file."""
        return self._begin[name]

    def identity(self) -> str:
        return self._file.identity()

    def release_pages(self) -> None:
        self._file.release_pages()

    def close(self) -> None:
        self._file.close()

    def _error(self, message: str, field: str = "", offset: int | None = None) -> ModelFormatError:
        return ModelFormatError(message, file=self.name, field=field, offset=offset)

    def _parse(self) -> None:
        size, view = self._file.size, self._file.view
        seems = describe_content(bytes(view[:512]))
        if size < 8:
            raise self._error(
                f"is truncated: {size} bytes, less than the 8 of the header's length" if not seems else f"is {seems}"
            )
        header_bytes = int.from_bytes(view[:8], "little")
        if header_bytes > min(MAX_HEADER_BYTES, size - 8) or header_bytes < 2 or view[8] != ord("{"):
            if seems:
                raise self._error(f"is not safetensors but {seems}")
            if header_bytes > size - 8:
                raise self._error(
                    f"is truncated or not safetensors: the header says {header_bytes:,} bytes, the file has {size - 8:,} more",
                    offset=0,
                )
            if header_bytes > MAX_HEADER_BYTES:
                raise self._error(
                    f"has a header of {header_bytes:,} bytes; at most {MAX_HEADER_BYTES:,} are accepted", offset=0
                )
            raise self._error("has no JSON object as header", offset=8)
        header = strict_json.parse(
            bytes(view[8 : 8 + header_bytes]), file=self.name, max_depth=4, max_containers=3 * MAX_TENSORS, offset=8
        )
        self._check_metadata(header.pop("__metadata__", {}))
        if len(header) > MAX_TENSORS:
            raise self._error(f"declares {len(header):,} tensors; at most {MAX_TENSORS:,} are accepted")
        self._check_layout(header, data_begin=8 + header_bytes)

    def _check_metadata(self, metadata: object) -> None:
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise self._error("must map strings to strings", field="__metadata__")
        if sum(len(key) + len(value) for key, value in metadata.items()) > MAX_METADATA_BYTES:
            raise self._error(f"is larger than {MAX_METADATA_BYTES:,} characters", field="__metadata__")

    def _check_layout(self, header: dict[str, Any], data_begin: int) -> None:
        """Each entry alone, then all together: contiguous from the first byte of the data to the end of the file."""
        spans = []
        for name, entry in header.items():
            info, begin, end = self._check_entry(name, entry)
            self.tensors[name] = info
            self._begin[name] = data_begin + begin
            spans.append((begin, end, name))
        position = 0
        for begin, end, name in sorted(spans):
            if begin != position:
                what = "overlaps the one before it" if begin < position else "leaves a hole before it"
                raise self._error(
                    f"{what}: begins at {begin}, expected {position}", field=_short(name), offset=data_begin + begin
                )
            position = end
        have = self._file.size - data_begin
        if position > have:
            raise self._error(f"is truncated: the tensors need {position:,} bytes of data, the file has {have:,}")
        if position < have:
            raise self._error(f"has {have - position:,} bytes after the last tensor", offset=data_begin + position)

    def _check_entry(self, name: str, entry: object) -> tuple[TensorInfo, int, int]:
        field = _short(name)
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self._error("must have exactly dtype, shape and data_offsets", field=field)
        stored, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = SAFETENSORS_DTYPES.get(stored) if isinstance(stored, str) else None
        if dtype is None:
            raise self._error(f"has dtype {str(stored)[:40]!r}; accepted are {', '.join(SAFETENSORS_DTYPES)}", field=field)
        if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(_is_count(dim) for dim in shape):
            raise self._error(f"has a bad shape; at most {MAX_DIMS} dimensions, each a whole number from 0", field=field)
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_count(value) for value in offsets):
            raise self._error("has bad data_offsets; two whole numbers from 0 are expected", field=field)
        nbytes = math.prod(shape) * dtype.itemsize  # Python integers do not wrap
        begin, end = offsets
        if nbytes > MAX_BYTES or end - begin != nbytes:
            raise self._error(
                f"of shape {shape} and dtype {stored} takes {nbytes:,} bytes, data_offsets span {end - begin:,}", field=field
            )
        return TensorInfo(tuple(shape), dtype.name, nbytes), begin, end


_NUMPY = {dtype.name: dtype for dtype in SAFETENSORS_DTYPES.values()}


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_BYTES


def _short(name: str) -> str:
    return name if len(name) <= 120 else name[:117] + "…"


class SafetensorsFolder:
    """The weights of a model folder: `model.safetensors`, or the shards that `model.safetensors.index.json` lists."""

    def __init__(self, folder: Path) -> None:
        self.warnings: list[str] = []
        self._folder = folder
        self._home: dict[str, SafetensorsFile] = {}
        self._files: list[SafetensorsFile] = []
        names = sorted(path.name for path in folder.iterdir() if path.name.endswith(".safetensors"))
        try:
            if (folder / INDEX_NAME).exists():
                self._open_shards(folder, names)
            else:
                self._open_single(folder, names)
        except BaseException:
            self.close()
            raise
        self.tensors = {name: file.tensors[name] for name, file in self._home.items()}

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order of their names."""
        return tuple(self._folder / file.name for file in sorted(self._files, key=lambda file: file.name))

    def read(self, name: str) -> NDArray[Any]:
        return self._home[name].read(name)

    def identity(self) -> str:
        return " ".join(f"{file.name} {file.identity()}" for file in self._files)

    def release_pages(self) -> None:
        for file in self._files:
            file.release_pages()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _open_single(self, folder: Path, names: list[str]) -> None:
        if SINGLE_NAME in names:
            chosen = SINGLE_NAME
        elif len(names) == 1:
            chosen = names[0]
        else:
            raise ModelFormatError(
                f"has {len(names)} .safetensors files ({', '.join(names[:5])}, …) and no {INDEX_NAME}; the index is missing",
                file=folder.name,
            )
        self.warnings += [f"{name} is not read: {chosen} holds the model" for name in names if name != chosen]
        file = SafetensorsFile(safe_path(folder, chosen), chosen)
        self._files.append(file)
        self._home = dict.fromkeys(file.tensors, file)

    def _open_shards(self, folder: Path, names: list[str]) -> None:
        weight_map = _read_index(folder)
        shards = sorted(set(weight_map.values()))
        self.warnings += [f"{name} is not read: {INDEX_NAME} does not list it" for name in names if name not in shards]
        absent = [shard for shard in shards if not safe_path(folder, shard).exists()]
        if absent:
            raise ModelFormatError(
                f"lists {len(absent)} of {len(shards)} files that are not there: {_some(absent)} (an incomplete download?)",
                file=INDEX_NAME,
            )
        opened: dict[str, SafetensorsFile] = {}
        problems = []
        for shard in shards:
            try:
                opened[shard] = SafetensorsFile(safe_path(folder, shard), shard)
                self._files.append(opened[shard])
            except ModelError as error:
                problems.append(str(error))
        if problems:
            raise ModelFormatError("; ".join(problems[:8]), file=INDEX_NAME)
        missing = [f"{name} in {shard}" for name, shard in weight_map.items() if name not in opened[shard].tensors]
        if missing:
            raise ModelFormatError(f"lists tensors that their file does not hold: {_some(missing)}", file=INDEX_NAME)
        unlisted = [f"{name} in {shard}" for shard in shards for name in opened[shard].tensors if weight_map.get(name) != shard]
        if unlisted:
            self.warnings.append(
                f"{counted(len(unlisted), 'tensor')} not read, because {INDEX_NAME} does not list them: {_some(unlisted)}"
            )
        self._home = {name: opened[shard] for name, shard in weight_map.items()}


def _read_index(folder: Path) -> dict[str, str]:
    index = strict_json.load_object(safe_path(folder, INDEX_NAME), name=INDEX_NAME)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or len(weight_map) > MAX_TENSORS:
        raise ModelFormatError(f"must map 1 to {MAX_TENSORS:,} tensor names to files", file=INDEX_NAME, field="weight_map")
    for name, shard in weight_map.items():
        if not is_plain_name(shard) or not re.fullmatch(r".+\.safetensors", shard):
            raise ModelFormatError(
                f"names the file {str(shard)[:80]!r}; a plain name ending in .safetensors is expected",
                file=INDEX_NAME,
                field=_short(name),
            )
    return weight_map


def _some(items: list[str], limit: int = 8) -> str:
    return ", ".join(items[:limit]) + (f" and {len(items) - limit} more" if len(items) > limit else "")
