"""Opening model files safely: read-only, regular, inside the model's folder, watched for change.

Knows what a wrong file usually is (a Git LFS pointer, an HTML error page, a pickle) and says so.
Does not know any model format.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import stat
from pathlib import Path

from taut.errors import ModelFormatError, ModelNotFoundError, UnsupportedModelError

HEAD_BYTES, NUM_SAMPLES, SAMPLE_BYTES = 1 << 20, 512, 4096  # of a file's identity
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
PICKLE_ADVICE = (
    "a pickle file can run code when it is read, so it is never opened; "
    "convert the model to safetensors (`model.save_pretrained(folder, safe_serialization=True)`)"
)

_MAGICS: tuple[tuple[bytes, str], ...] = (
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself; run `git lfs pull` to fetch it"),
    (b"<!doctype html", "an HTML page, such as a download's error page; download the file again"),
    (b"<html", "an HTML page, such as a download's error page; download the file again"),
    (b"<?xml", "an XML page, such as a download's error page; download the file again"),
    (b"pk\x03\x04", f"a zip archive such as torch.save writes: {PICKLE_ADVICE}"),
    (b"\x80\x02", f"a Python pickle: {PICKLE_ADVICE}"),
    (b"\x80\x03", f"a Python pickle: {PICKLE_ADVICE}"),
    (b"\x80\x04", f"a Python pickle: {PICKLE_ADVICE}"),
    (b"\x80\x05", f"a Python pickle: {PICKLE_ADVICE}"),
    (b"gguf", "a GGUF file; give it a name that ends in .gguf"),
    (b"lmgg", "an old GGML file; convert the model again to GGUF"),
    (b"fmgg", "an old GGMF file; convert the model again to GGUF"),
    (b"tjgg", "an old GGJT file; convert the model again to GGUF"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
)


def describe_content(head: bytes) -> str | None:
    """What a file that is not the expected format seems to be, from its first bytes; None when nothing is recognised."""
    if not head:
        return "an empty file (an interrupted download?)"
    start = head.lstrip()[:64].lower() if head[:1] in b" \t\r\n<" else head[:64].lower()
    for magic, text in _MAGICS:
        if start.startswith(magic):
            return text
    if not head.strip(b"\0"):
        return "zeros (an interrupted download?)"
    return None


def allowed_root(folder: Path) -> Path:
    """The folder that the model's files must really lie in, links followed.

    It is the folder itself. A hub cache keeps `snapshots/<revision>/name` as links to `blobs/<hash>`, so there it is
    the repository's cache folder.
    """
    folder = folder.resolve()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent
    return folder


def safe_path(folder: Path, name: str) -> Path:
    """`folder/name`, links followed; refuses what lies outside the model's folder. The file may be absent."""
    try:
        path = (folder / name).resolve()
    except (OSError, RuntimeError):  # links in a circle: RuntimeError up to Python 3.12
        raise ModelFormatError("is a link that leads to itself; put the file there", file=name) from None
    if not path.is_relative_to(allowed_root(folder)):
        raise ModelFormatError(
            f"leads outside the model folder {folder.name!r}; only files inside it are read, so copy the file into it",
            file=name,
        )
    return path


def _open_regular(path: Path, name: str) -> tuple[int, os.stat_result]:
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise UnsupportedModelError(f"{name}: {PICKLE_ADVICE}")
    try:
        # O_NONBLOCK: a named pipe must be refused below, not waited for here.
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise ModelNotFoundError(f"no such file: {path}") from None
    except OSError as error:
        raise ModelNotFoundError(f"cannot read {path}: {error.strerror}") from None
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise ModelFormatError(f"is {kind}; a model file is expected here", file=name)
    return fd, status


def read_small(path: Path, *, max_bytes: int, name: str = "") -> bytes:
    """The whole of a small regular file; one larger than `max_bytes` is refused before anything is read."""
    name = name or path.name
    fd, status = _open_regular(path, name)
    with os.fdopen(fd, "rb") as file:
        if status.st_size > max_bytes:
            raise ModelFormatError(f"is {status.st_size:,} bytes; at most {max_bytes:,} are accepted", file=name)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ModelFormatError(f"is larger than {max_bytes:,} bytes", file=name)
    return data


class MappedFile:
    """A read-only memory map of a regular file whose size and time of change are watched.

    `view` is the whole file. Arrays made from it keep the map alive after `close`.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        self.path, self.name = path, name or path.name
        self._fd, status = _open_regular(path, self.name)
        self._seen = (status.st_size, status.st_mtime_ns)
        self.size = status.st_size
        try:
            if self.size == 0:
                raise ModelFormatError(f"is {describe_content(b'')}", file=self.name)
            self._map = mmap.mmap(self._fd, self.size, access=mmap.ACCESS_READ)
            self.view = memoryview(self._map)
        except BaseException:
            os.close(self._fd)
            raise

    def check_unchanged(self) -> None:
        """Refuses a file that was changed since it was checked: a shorter one would end the process at its first use."""
        if self._fd < 0:
            raise ValueError(f"{self.name} is closed")
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != self._seen:
            raise ModelFormatError("was changed while in use; open the model again", file=self.name)

    def identity(self) -> str:
        """A hash of size, time of change, beginning, end and samples between: a file that was changed gets another one. Independent
        of the path. Not a hash of all bytes, which would take as long as reading the file."""
        self.check_unchanged()
        digest = hashlib.blake2b(repr(self._seen).encode(), digest_size=16)
        step = max(self.size // NUM_SAMPLES, SAMPLE_BYTES)
        spans = [
            (0, HEAD_BYTES),
            *((begin, SAMPLE_BYTES) for begin in range(0, self.size, step)),
            (self.size - SAMPLE_BYTES, SAMPLE_BYTES),
        ]
        for begin, count in spans:
            digest.update(os.pread(self._fd, count, max(begin, 0)))
        return digest.hexdigest()

    def release_pages(self) -> None:
        """Drop the pages read so far from this process's resident memory; reading one again takes it from the system's cache."""
        if hasattr(mmap, "MADV_DONTNEED") and self._fd >= 0:
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            del self.view, self._map  # the map goes when the last array over it goes


def is_plain_name(name: object) -> bool:
    """Whether `name` is a file name without separators: letters, digits, dot, dash and underscore only."""
    return isinstance(name, str) and re.fullmatch(r"[\w.\-]{1,255}", name) is not None and name.strip(".") != ""
