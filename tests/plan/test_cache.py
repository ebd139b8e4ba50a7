"""Packed weights come back from the cache bit for bit, and nothing that is wrong with a cache file reaches a model."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut import checkpoint as checkpoints
from taut import env, loading, models, passes
from taut.checkpoint.files import MappedFile
from taut.engine.runtime import Runtime, runtime
from taut.errors import ModelFormatError, UsageError
from taut.kernels import native
from taut.plan import cache, cache_file, weights
from taut.plan.cache import PackedCache
from taut.testing import tiny

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not native.is_built(), reason="the native module is not built"),
]
PROMPT = [5, 9, 2, 14]


class Setting:
    """A model folder, a cache folder and the loads that happen between them."""

    def __init__(self, folder: Path, cache_folder: Path) -> None:
        self.folder, self.cache_folder = folder, cache_folder
        self.meanwhile: Callable[[], None] | None = None

    def load(self, precision: str = "int8", **options: Any) -> tuple[weights.WeightStore, bool]:
        """The model's packed weights, and whether they came out of the cache."""
        kept = PackedCache(self.cache_folder, **{"min_bytes": 0, **options})
        machine: Runtime = runtime(1)
        with checkpoints.open(str(self.folder)) as checkpoint:
            built = models.build(checkpoint)
            graph = passes.optimize(built.graph, passes.Options(precision))  # type: ignore[arg-type]
            source = loading._Renamed(checkpoint, built.renamed)
            reads: list[str] = []
            original = type(source).read

            class Counted(loading._Renamed):
                def read(self, key: str) -> Any:
                    reads.append(key)
                    return original(self, key)

            counted = Counted(checkpoint, built.renamed)
            store = kept.load(graph, counted, machine.allocate, machine.packers, machine.pool, meanwhile=self.meanwhile)
        kept.wait()
        return store, not reads

    def entry(self) -> Path:
        (entry,) = self.cache_folder.glob("*.taut")
        return entry


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tiny("llama", tmp_path / "model"), tmp_path / "cache")


def assert_equal(one: weights.WeightStore, other: weights.WeightStore) -> None:
    assert list(one) == list(other)
    assert one.rows == other.rows
    for key in one:
        a, b = one[key], other[key]
        assert (a.kind, a.shape, a.data.dtype, a.data.shape) == (b.kind, b.shape, b.data.dtype, b.data.shape)
        assert a.data.tobytes() == b.data.tobytes()
        assert (a.scale is None) == (b.scale is None)
        if a.scale is not None and b.scale is not None:
            assert a.scale.tobytes() == b.scale.tobytes()


@pytest.mark.parametrize("precision", ["int8", "fp32", "fp16", "bf16", "int4-g32"])
def test_the_second_load_reads_the_same_bits(setting: Setting, precision: str) -> None:
    packed, was_kept = setting.load(precision)
    assert not was_kept
    kept, was_kept = setting.load(precision)
    assert was_kept
    assert_equal(packed, kept)


def test_precisions_have_their_own_entries(setting: Setting) -> None:
    setting.load("int8")
    assert not setting.load("fp16")[1]
    assert len(list(setting.cache_folder.glob("*.taut"))) == 2
    assert setting.load("int8")[1]
    assert setting.load("fp16")[1]


def test_where_the_model_lies_does_not_matter(setting: Setting, tmp_path: Path) -> None:
    packed, _ = setting.load()
    shutil.copytree(setting.folder, tmp_path / "elsewhere")  # keeps the files' times
    moved, was_kept = Setting(tmp_path / "elsewhere", setting.cache_folder).load()
    assert was_kept
    assert_equal(packed, moved)


def change_bytes(folder: Path, *, keep_time: bool) -> None:
    """Other weights of the same size."""
    path = folder / "model.safetensors"
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-64:] = np.arange(16, dtype=np.float32).tobytes()
    path.write_bytes(data)
    times = (status.st_atime_ns, status.st_mtime_ns if keep_time else status.st_mtime_ns + 1)
    os.utime(path, ns=times)


@pytest.mark.parametrize("keep_time", [False, True])
def test_a_changed_checkpoint_is_packed_again(setting: Setting, keep_time: bool) -> None:
    before, _ = setting.load()
    change_bytes(setting.folder, keep_time=keep_time)
    after, was_kept = setting.load()
    assert not was_kept
    assert any(before[key].data.tobytes() != after[key].data.tobytes() for key in before)


def identity(path: Path) -> str:
    file = MappedFile(path)
    try:
        return file.identity()
    finally:
        file.close()


def test_a_new_time_alone_is_another_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 100)
    first = identity(path)
    assert identity(path) == first
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert identity(path) != first


def flip(at: Callable[[int], int]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at(len(data))] ^= 0x10
        path.write_bytes(data)

    return damage


def rewrite_header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A header that was changed and hashed again, as a buggy writer would."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        preamble = struct.Struct("<8sII16s")
        magic, version, size, _ = preamble.unpack_from(data)
        header = json.loads(data[preamble.size : preamble.size + size])
        body = data[-header["bytes"] :]
        change(header)
        raw = json.dumps(header).encode()
        head = preamble.pack(magic, version, len(raw), cache_file._digest(raw)) + raw
        path.write_bytes(head.ljust(-(-len(head) // 4096) * 4096, b"\0") + body)

    return damage


def truncate(share: float) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, int(path.stat().st_size * share))


def put(offset: int, data: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    return damage


def set_place(value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["weights"][0][3].__setitem__(0, value)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": truncate(0),
    "truncated in the preamble": lambda path: os.truncate(path, 20),
    "truncated in the header": lambda path: os.truncate(path, 200),
    "truncated in the data": truncate(0.7),
    "one byte short": lambda path: os.truncate(path, path.stat().st_size - 1),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "magic": flip(lambda size: 0),
    "version": put(8, struct.pack("<I", cache_file.VERSION + 1)),
    "header of 4 GB": put(12, b"\xff\xff\xff\xff"),
    "flipped in the header": flip(lambda size: 100),
    "flipped in the first weight": flip(lambda size: size - 200_000 if size > 300_000 else size // 2),
    "flipped in the last byte": flip(lambda size: size - 1),
    "other key": rewrite_header(lambda header: header.update(key="0" * 32)),
    "no chunks": rewrite_header(lambda header: header.pop("chunks")),
    "chunks that are none": rewrite_header(lambda header: header.update(chunks=None)),
    "a weight less": rewrite_header(lambda header: header["weights"].pop()),
    "a weight twice": rewrite_header(lambda header: header["weights"].append(header["weights"][0])),
    "outside": rewrite_header(set_place(1 << 40)),
    "negative": rewrite_header(set_place(-64)),
    "unaligned": rewrite_header(set_place(1)),
    "a bool for an offset": rewrite_header(set_place(True)),
    "another dtype": rewrite_header(lambda header: header["weights"][0][3].__setitem__(1, "object")),
    "another shape": rewrite_header(lambda header: header["weights"][0][3].__setitem__(2, [1, 1])),
    "rows that are none": rewrite_header(lambda header: header.update(rows=[1])),
    "a size that is none": rewrite_header(lambda header: header.update(bytes="many")),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_entry_is_made_again(setting: Setting, name: str, caplog: pytest.LogCaptureFixture) -> None:
    packed, _ = setting.load()
    DAMAGES[name](setting.entry())
    with caplog.at_level(logging.WARNING):
        again, was_kept = setting.load()
    assert not was_kept
    assert_equal(packed, again)
    assert "made again" in caplog.text
    assert setting.load()[1], "and written again"


@pytest.mark.parametrize("name", ["flipped in the first weight", "truncated in the data", "version"])
def test_a_damaged_entry_is_found_beside_other_work(setting: Setting, name: str) -> None:
    packed, _ = setting.load()
    done: list[int] = []
    setting.meanwhile = lambda: done.append(1)
    assert setting.load()[1]
    DAMAGES[name](setting.entry())
    again, was_kept = setting.load()
    assert not was_kept
    assert_equal(packed, again)
    assert done == [1, 1], "once a load"


def test_the_error_of_other_work_is_raised_when_the_reading_has_ended(setting: Setting) -> None:
    """Nobody writes to the memory any more then."""
    setting.load()
    ended = threading.Event()
    read = cache_file.read

    def slow(*arguments: Any) -> weights.WeightStore:
        time.sleep(0.2)
        store = read(*arguments)
        ended.set()
        return store

    def fail() -> None:
        raise ValueError("the tokenizer is damaged")

    setting.meanwhile = fail
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_file, "read", slow)
        with pytest.raises(ValueError, match="damaged"):
            setting.load()
    assert ended.is_set()


def test_a_damaged_tokenizer_is_refused_though_the_weights_are_kept(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the failed load leaves no file open."""
    monkeypatch.setattr(cache.PackedCache.__init__, "__kwdefaults__", {"min_bytes": 0, "cap_bytes": cache.CAP_BYTES})
    monkeypatch.setenv(env.CACHE.name, str(setting.cache_folder))
    first = taut.load(str(setting.folder), threads=1)
    for thread in threading.enumerate():
        if thread.name == "taut-cache":
            thread.join()
    assert setting.entry().is_file()
    first.close()
    (setting.folder / "tokenizer.json").write_text("{")
    was_open = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json"):
        taut.load(str(setting.folder), threads=1)
    assert set(os.listdir("/proc/self/fd")) == was_open
    assert gc.isenabled()


def test_a_link_is_not_followed(setting: Setting, tmp_path: Path) -> None:
    packed, _ = setting.load()
    entry, target = setting.entry(), tmp_path / "target"
    entry.rename(target)
    content = target.read_bytes()
    entry.symlink_to(target)
    again, was_kept = setting.load()
    assert not was_kept
    assert_equal(packed, again)
    assert not entry.is_symlink()
    assert target.read_bytes() == content


def test_a_pipe_does_not_hang(setting: Setting) -> None:
    setting.load()
    entry = setting.entry()
    entry.unlink()
    os.mkfifo(entry)
    assert not setting.load()[1]


def test_a_cache_that_cannot_be_written_is_a_log_line(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.cache_folder.write_text("a file where a folder should be")
    with caplog.at_level(logging.INFO):
        assert not setting.load()[1]
    assert "not kept" in caplog.text


@pytest.mark.parametrize("call", ["posix_fallocate", "fsync", "replace"])
def test_a_full_disk_leaves_nothing(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.INFO):
        patch.setattr(os, call, fail)
        assert not setting.load()[1]
    assert "No space left" in caplog.text
    assert list(setting.cache_folder.iterdir()) == []
    assert not setting.load()[1]
    assert setting.load()[1]


def test_a_small_disk_is_left_alone(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "SPARE_BYTES", 1 << 60)
    setting.load()
    assert list(setting.cache_folder.iterdir()) == []


def test_the_least_recently_used_goes_first(setting: Setting) -> None:
    setting.load("int8")
    size = setting.entry().stat().st_size
    setting.load("fp16")
    for age, entry in enumerate(sorted(setting.cache_folder.glob("*.taut"), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(entry, ns=(0, 1_000_000_000 * (age + 1)))
    assert setting.load("int8")[1], "its use makes it the younger one"
    total = sum(entry.stat().st_size for entry in setting.cache_folder.glob("*.taut"))
    assert not setting.load("bf16", cap_bytes=total + size // 2)[1]
    assert setting.load("int8")[1]
    assert setting.load("bf16")[1]
    assert not setting.load("fp16")[1]


def test_stale_temporary_files_go(setting: Setting) -> None:
    setting.cache_folder.mkdir()
    stale, fresh = setting.cache_folder / ".a.taut.1.tmp", setting.cache_folder / ".b.taut.2.tmp"
    for path in (stale, fresh):
        path.write_bytes(b"x")
    old = time.time() - 2 * cache.STALE_S
    os.utime(stale, (old, old))
    setting.load()
    assert not stale.exists()
    assert fresh.exists()


def test_small_models_are_not_kept(setting: Setting) -> None:
    setting.load(min_bytes=cache.MIN_BYTES)
    assert not setting.cache_folder.exists()


def test_writers_at_once(setting: Setting) -> None:
    """Four processes pack and write the same entry; each has the right weights, and one whole file stays."""
    script = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from pathlib import Path
from test_cache import Setting
import hashlib
store, _ = Setting(Path({str(setting.folder)!r}), Path({str(setting.cache_folder)!r})).load()
print(hashlib.sha256(b"".join(store[key].data.tobytes() for key in store)).hexdigest())
"""
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate()[0].split() for process in running]
    assert all(process.returncode == 0 for process in running)
    assert len({output[-1] for output in outputs}) == 1
    assert setting.load()[1]
    assert [path.suffix for path in setting.cache_folder.iterdir()] == [".taut"]


def test_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for word in ("off", "0", "no", "OFF"):
        monkeypatch.setenv(env.CACHE.name, word)
        assert cache.of_user() is None
    monkeypatch.setenv(env.CACHE.name, str(tmp_path / "mine"))
    assert cache.of_user().folder == tmp_path / "mine"  # type: ignore[union-attr]
    monkeypatch.delenv(env.CACHE.name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.of_user().folder == tmp_path / "taut"  # type: ignore[union-attr]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.of_user().folder == tmp_path / "home" / ".cache" / "taut"  # type: ignore[union-attr]


def test_a_variable_that_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.CACHE.name, "~nobody-of-this-name/cache")
    with pytest.raises(UsageError, match=r"TAUT_CACHE is '~nobody.*; give a folder, or off"):
        cache.of_user()


@pytest.mark.parametrize(("is_asked_for", "level"), [(True, logging.WARNING), (False, logging.INFO)])
def test_who_names_a_folder_that_cannot_be_written_is_told(
    setting: Setting, caplog: pytest.LogCaptureFixture, is_asked_for: bool, level: int
) -> None:
    setting.cache_folder.write_text("a file where a folder should be")
    with caplog.at_level(logging.INFO):
        setting.load(is_asked_for=is_asked_for)
    assert [record.levelno for record in caplog.records if "not kept" in record.message] == [level]


def test_folders_under_the_names_of_files_stay_and_do_no_harm(setting: Setting) -> None:
    packed, _ = setting.load()
    entry = setting.entry()
    entry.unlink()
    (entry / "inside").mkdir(parents=True)
    stale = setting.cache_folder / "old.tmp"
    stale.mkdir()
    os.utime(stale, (0, 0))
    again, was_kept = setting.load()
    assert not was_kept
    assert_equal(packed, again)
    assert (entry / "inside").is_dir()
    setting.load("fp16")
    assert setting.load("fp16")[1], "others are written and read beside it"


def test_a_kept_model_answers_the_same(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MIN_BYTES", 0)
    monkeypatch.setattr(cache.PackedCache.__init__, "__kwdefaults__", {"min_bytes": 0, "cap_bytes": cache.CAP_BYTES})
    monkeypatch.setenv(env.CACHE.name, str(setting.cache_folder))
    first = taut.load(str(setting.folder), threads=1).logits(PROMPT)
    deadline = time.monotonic() + 20
    while not list(setting.cache_folder.glob("*.taut")) and time.monotonic() < deadline:
        time.sleep(0.01)
    used: list[Path] = []
    read = cache_file.read

    def spy(path: Path, *arguments: Any) -> weights.WeightStore:
        used.append(path)
        return read(path, *arguments)

    monkeypatch.setattr(cache_file, "read", spy)
    second = taut.load(str(setting.folder), threads=1).logits(PROMPT)
    assert used == [setting.entry()]
    assert np.array_equal(first, second)


def test_every_flip_changes_the_hash() -> None:
    pool = native.thread_pool(1)
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    known = native.hash_chunks(data, 256, pool)
    assert len(known) == 4
    for at in (*range(0, 1000, 37), 255, 256, 999):
        for bit in (0, 7):
            data[at] ^= 1 << bit
            found = native.hash_chunks(data, 256, pool)
            assert [index for index in range(4) if found[index] != known[index]] == [at // 256]
            data[at] ^= 1 << bit
    assert native.hash_chunks(data, 256, native.thread_pool(3)) == known
