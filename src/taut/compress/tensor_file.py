"""A safetensors file written tensor by tensor, in an order known from the start; one that was interrupted goes on where it stopped.

The header is written first, so every tensor's place is fixed; beside the file stands how many are complete.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint.tensors import SAFETENSORS_DTYPES
from taut.errors import CompressionError

NAMES = {dtype.name: name for name, dtype in SAFETENSORS_DTYPES.items()}
Entry = tuple[str, str, tuple[int, ...]]  # name, numpy's name of the type, shape


class TensorFile:
    """Opens `path` for `entries`; the first `done` of them are there already. `tag` names what they are made of: a file of another tag
    is begun anew."""

    def __init__(self, path: Path, entries: Sequence[Entry], tag: str) -> None:
        self._path, self._entries = path, list(entries)
        self._journal = journal(path)
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset, self._ends = 0, [0]
        for name, dtype, shape in entries:
            end = offset + math.prod(shape) * SAFETENSORS_DTYPES[NAMES[dtype]].itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
            offset = end
            self._ends.append(end)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._head, self._tag = len(text).to_bytes(8, "little") + text, tag
        self.done = self._resumed()
        self._file = path.open("r+b" if self.done else "wb")
        if not self.done:
            self._file.write(self._head)
        self._file.truncate(len(self._head) + self._ends[self.done])
        self._file.seek(0, os.SEEK_END)

    def write(self, array: NDArray[Any]) -> None:
        """The next entry's values, in its type and shape."""
        name, dtype, shape = self._entries[self.done]
        assert array.dtype.name == dtype and array.shape == shape, f"{name}: {array.dtype} {array.shape}, not {dtype} {shape}"
        try:
            self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise CompressionError(
                f"cannot write {self._path}: {error.strerror}; what is there is kept, free some space and run the same command again"
            ) from None
        self.done += 1

    def checkpoint(self) -> None:
        """What was written so far is on the disk, and will not be made again."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._journal.write_text(json.dumps({"tag": self._tag, "done": self.done}))

    def close(self) -> None:
        """The file is complete; ValueError when entries are missing. That it is complete stays noted beside it: see `forget`."""
        if self.done != len(self._entries):
            self._file.close()
            raise ValueError(f"{self.done} of {len(self._entries)} tensors were written")
        self.checkpoint()
        self._file.close()

    @staticmethod
    def forget(path: Path) -> None:
        """Remove the note of what is complete: nobody will go on with the file."""
        journal(path).unlink(missing_ok=True)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with suppress(OSError):
            self.checkpoint()
        self._file.close()

    def _resumed(self) -> int:
        """Entries of an interrupted run that are complete; 0 where there is none of the same tag."""
        try:
            stated = json.loads(self._journal.read_text())
            done = stated["done"]
            with self._path.open("rb") as file:
                same = stated["tag"] == self._tag and file.read(len(self._head)) == self._head
            enough = self._path.stat().st_size >= len(self._head) + self._ends[done]
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            return 0
        return int(done) if same and enough and 0 <= done <= len(self._entries) else 0


def journal(path: Path) -> Path:
    return path.with_name(path.name + ".done")
