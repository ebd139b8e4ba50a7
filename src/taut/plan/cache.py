"""PackedCache: packed weights kept in the user's cache folder, so that a model that was loaded before is read instead of packed.

An entry's name is a hash of everything that determines its bytes: the checkpoint's files (whatever their path), the packed layout, and
taut's own code that reads and packs. A file that is missing, old or damaged is made again from the checkpoint; a cache that cannot be
written is a log line, never an error. Knows when to keep a file; cache_file.py knows what is in one.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taut import env
from taut.errors import UsageError
from taut.graph import Graph
from taut.kernels import native
from taut.plan import cache_file, weights
from taut.plan.cache_file import UnusableFileError
from taut.plan.packing import Packer
from taut.plan.weights import Progress, TensorSource, WeightStore, kinds, store_bytes
from taut.units import show_bytes

MIN_BYTES = 16 << 20  # less is packed faster than it is worth a file
CAP_BYTES = 32 << 30  # of all entries together; the least recently used go first
SPARE_BYTES = 1 << 30  # that stay free on the disk
STALE_S = 3600  # a temporary file of this age belongs to a process that died
WRITER_NICE = 10
CODE = ("checkpoint", "models", "passes", "plan", "quant")  # packages whose change makes old entries worthless
ENTRY = re.compile(r"[0-9a-f]{32}\.taut")

log = logging.getLogger(__name__)


class IdentifiedSource(TensorSource, Protocol):
    """Tensors, and what tells them from any others."""

    def identity(self) -> str:
        """Equal for equal files and names only; None of it depends on where they lie."""


class PackedCache:
    """One folder of packed weights. Several processes may use it at once."""

    def __init__(
        self, folder: Path, *, min_bytes: int = MIN_BYTES, cap_bytes: int = CAP_BYTES, is_asked_for: bool = False
    ) -> None:
        self.folder = folder
        self._failure_level = logging.WARNING if is_asked_for else logging.INFO  # who named the folder wants to know
        self._min_bytes, self._cap_bytes = min_bytes, cap_bytes
        self._writers: list[threading.Thread] = []

    def load(
        self,
        graph: Graph,
        source: IdentifiedSource,
        allocate: Callable[[int], NDArray[np.uint8]],
        packers: Mapping[str, Packer] | None,
        pool: native.ThreadPool,
        progress: Progress | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> WeightStore:
        """As weights.load: read from the cache when it is there, else packed and, meanwhile, written for the next time. `meanwhile` is
        other work of the caller's: done beside the reading, which needs no interpreter, and before any packing; its error is raised."""
        if store_bytes(graph) < self._min_bytes:
            if meanwhile:
                meanwhile()
            return weights.load(graph, source, allocate, packers, progress)
        key = entry_key(graph, source.identity())
        path = self.folder / f"{key}.taut"
        if (kept := self._read_beside(meanwhile, path, key, graph, allocate, pool)) is not None:
            return kept
        arenas: list[NDArray[np.uint8]] = []

        def allocate_and_note(size: int) -> NDArray[np.uint8]:
            arenas.append(allocate(size))
            return arenas[-1]

        store = weights.load(graph, source, allocate_and_note, packers, progress)
        writer = threading.Thread(target=self._write, args=(path, key, arenas[0], store, pool), name="taut-cache")
        self._writers.append(writer)
        writer.start()
        return store

    def wait(self) -> None:
        """Returns when everything is written; the end of the process waits too."""
        for writer in self._writers:
            writer.join()
        self._writers.clear()

    def _read_beside(self, meanwhile: Callable[[], None] | None, *arguments: Any) -> WeightStore | None:
        """_read(*arguments) in a thread of its own while `meanwhile` runs in this one."""
        if meanwhile is None:
            return self._read(*arguments)
        with ThreadPoolExecutor(1, "taut-read") as reader:  # its end waits for the reading, whatever `meanwhile` raises
            reading = reader.submit(self._read, *arguments)
            meanwhile()
            return reading.result()

    def _read(
        self, path: Path, key: str, graph: Graph, allocate: Callable[[int], NDArray[np.uint8]], pool: native.ThreadPool
    ) -> WeightStore | None:
        expected = {name: (str(kind), tuple(graph.weight_shape(name))) for name, kind in kinds(graph).items()}
        try:
            store = cache_file.read(path, key, expected, allocate, pool)
        except FileNotFoundError:
            return None
        except UnusableFileError as error:
            log.warning("the packed weights in %s are not used and made again: the file %s", path, error)
            return None
        with suppress(OSError):
            os.utime(path)  # the time of its last use
        return store

    def _write(self, path: Path, key: str, arena: NDArray[np.uint8], store: WeightStore, pool: native.ThreadPool) -> None:
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), WRITER_NICE)  # this thread's only
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._make_room(arena.nbytes):
                cache_file.write(path, key, arena, store, pool)
        except OSError as error:
            log.log(self._failure_level, "the packed weights are not kept in %s: %s", self.folder, error.strerror)

    def _make_room(self, size: int) -> bool:
        """Whether an entry of `size` bytes may be written, after what was not used for longest has gone."""
        entries = []
        for item in os.scandir(self.folder):
            with suppress(OSError):  # another process removed it, or it is nothing of ours, as a folder of that name
                status = item.stat(follow_symlinks=False)
                if item.name.endswith(".tmp") and time.time() - status.st_mtime > STALE_S:
                    os.unlink(item.path)
                elif ENTRY.fullmatch(item.name):
                    entries.append((status.st_mtime_ns, status.st_size, item.path))
        used = sum(entry_bytes for _, entry_bytes, _ in entries)
        for _, entry_bytes, entry in sorted(entries):
            if used + size > self._cap_bytes:
                with suppress(OSError):
                    os.unlink(entry)
                    used -= entry_bytes
        free = shutil.disk_usage(self.folder).free
        if used + size > self._cap_bytes or free < size + SPARE_BYTES:
            message = (
                "the packed weights of %s are not kept in %s: %s are free, %s stay so, and all entries together take at most %s"
            )
            sizes = show_bytes(size), self.folder, show_bytes(free), show_bytes(SPARE_BYTES), show_bytes(self._cap_bytes)
            log.log(self._failure_level, message, *sizes)
            return False
        return True


def of_user() -> PackedCache | None:
    """The cache that TAUT_CACHE names, else the user's; None when it is off or there is no home. UsageError when it names none."""
    chosen = env.CACHE.get()
    if chosen is not None:
        if chosen.strip().lower() in env.FALSE_WORDS:
            return None
        try:
            return PackedCache(Path(chosen).expanduser(), is_asked_for=True)
        except RuntimeError as error:
            reason = str(error).rstrip(".").lower()
            raise UsageError(f"{env.CACHE.name} is {chosen!r}: {reason}; give a folder, or off") from None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return PackedCache((Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "taut")
    except RuntimeError:
        return None


def entry_key(graph: Graph, identity: str) -> str:
    """A hash of all that determines the packed bytes."""
    layout = [
        [key, kind, graph.weight_shape(key), graph.weights[key].layout if key in graph.weights else repr(graph.constants[key])]
        for key, kind in kinds(graph).items()
    ]
    parts = json.dumps([cache_file.VERSION, weights.ALIGN, code_digest(), identity, layout])
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


@functools.cache
def code_digest() -> str:
    """A hash of the code that reads, transforms and packs weights."""
    digest = hashlib.blake2b(digest_size=16)
    root = Path(__file__).parents[1]
    for package in CODE:
        for path in sorted((root / package).rglob("*.py")):
            text = path.read_bytes()
            digest.update(f"{path.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()
