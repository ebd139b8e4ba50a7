"""Malformed safetensors files and shard indexes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hostile.case import Case, read_all
from hostile.raw import entry, folder, pack, safetensors, sharded, write
from taut.errors import ModelError, ModelNotFoundError, UnsupportedModelError

ONE = {"a": np.zeros((2, 4))}


def _weights(data: bytes) -> Callable[[Path], Path]:
    return lambda path: folder(path, weights=data)


def _header(header: dict[str, object] | bytes, data: bytes = bytes(32)) -> Callable[[Path], Path]:
    return _weights(safetensors(header, data))


def _empty(path: Path) -> Path:
    folder(path, weights=b"")
    write(path / "model.safetensors", b"")
    return path


def _is_directory(path: Path) -> Path:
    folder(path, weights=b"")
    (path / "model.safetensors").mkdir()
    return path


def _escape(path: Path) -> Path:
    outside = write(path / "outside.safetensors", pack(ONE))
    folder(path / "model", weights=b"")
    (path / "model" / "model.safetensors").symlink_to(outside)
    return path / "model"


def _pipe(path: Path) -> Path:
    folder(path, weights=b"")
    os.mkfifo(path / "model.safetensors")
    return path


def _pickle_only(path: Path) -> Path:
    folder(path, weights=b"")
    write(path / "pytorch_model.bin", b"\x80\x02}q\x00.")
    return path


def _pickle_file(path: Path) -> Path:
    return write(path / "model.pt", b"\x80\x02}q\x00.")


def _absent_shard(path: Path) -> Path:
    sharded(path, {"a-1.safetensors": ONE, "a-2.safetensors": {"b": np.ones(3)}, "a-3.safetensors": {"c": np.ones(3)}})
    (path / "a-2.safetensors").unlink()
    return path


def _broken_shard(path: Path) -> Path:
    sharded(path, {"a-1.safetensors": ONE, "a-2.safetensors": {"b": np.ones(3)}})
    write(path / "a-2.safetensors", pack({"b": np.ones(3)})[:-1])
    return path


def _index(weight_map: object) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        sharded(path, {"a.safetensors": ONE})
        write(path / "model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
        return path

    return make


def _no_index(path: Path) -> Path:
    folder(path, weights=b"")
    write(path / "x-1.safetensors", pack(ONE))
    write(path / "x-2.safetensors", pack(ONE))
    return path


def _changed_in_use(path: Path) -> None:
    from taut import checkpoint

    with checkpoint.open(str(path)) as opened:
        with (path / "model.safetensors").open("r+b") as file:
            file.truncate(100)
        opened.read("a")


BIG = b'{"a":' + b"[" * 200_000
MANY = b"{" + b",".join(b'"%d":[[]]' % i for i in range(160_000)) + b"}"

CASES = [
    Case("empty", "b.2", _empty, "an empty file"),
    Case("seven-bytes", "b.2", _weights(b"1234567"), "is truncated: 7 bytes"),
    Case("header-cut", "B1", _weights(pack(ONE)[:30]), "is truncated or not safetensors"),
    Case("data-cut", "B1", _weights(pack(ONE)[:-1]), "is truncated: the tensors need 32 bytes of data, the file has 31"),
    Case("data-after-end", "b.2", _weights(pack(ONE) + b"x"), "has 1 bytes after the last tensor"),
    Case("giant-header", "b.2", _weights(safetensors(b"{}", header_len=2**63)), "is truncated or not safetensors"),
    Case(
        "header-over-16-mib", "b.2", _weights(safetensors(b"{" + b" " * (16 << 20) + b"}")), "at most 16,777,216 are accepted"
    ),
    Case("no-object", "b.2", _header(b"[]"), "has no JSON object as header"),
    Case("not-json", "b.2", _header(b'{"a":'), "is not valid JSON"),
    Case("not-utf8", "b.2", _header(b'{"\xff": 1}'), "is not valid JSON"),
    Case("nan", "b.2", _header(b'{"a": NaN}'), "NaN is not JSON"),
    Case("deep", "b.2", _header(b'{"a":{"b":{"c":{"d":[]}}}}'), "is nested deeper than 4 levels"),
    Case("very-deep", "b.2", _header(BIG), "is nested deeper than 4 levels"),
    Case("many-lists", "b.2", _header(MANY), "holds more than 300,000 lists and objects"),
    Case("duplicate", "b.2", _header(b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]},"a":1}'), "key 'a' stands twice"),
    Case("overlap", "b.2", _header({"a": entry([4], 0, 16), "b": entry([5], 12, 32)}), "overlaps the one before it"),
    Case("hole", "b.2", _header({"a": entry([3], 0, 12), "b": entry([4], 16, 32)}), "leaves a hole before it"),
    Case("late-start", "b.2", _header({"a": entry([7], 4, 32)}), "leaves a hole before it: begins at 4, expected 0"),
    Case("wrapping-shape", "B4", _header({"a": entry([2**33, 2**33], 0, 32)}), "takes 295,147,905,179,352,825,856 bytes"),
    Case("shape-and-bytes", "b.2", _header({"a": entry([4], 0, 32)}), "takes 16 bytes, data_offsets span 32"),
    Case("negative-dimension", "b.2", _header({"a": entry([-8], 0, 32)}), "has a bad shape"),
    Case("bool-dimension", "b.2", _header({"a": entry([True, 8], 0, 32)}), "has a bad shape"),
    Case("float-dimension", "b.2", _header({"a": entry([8.0], 0, 32)}), "has a bad shape"),
    Case("nine-dimensions", "b.2", _header({"a": entry([1] * 8 + [8], 0, 32)}), "at most 8 dimensions"),
    Case(
        "huge-number",
        "b.2",
        _header(b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,32]}}'),
        "is not valid JSON",
    ),
    Case("reversed-offsets", "b.2", _header({"a": entry([8], 32, 0)}), "data_offsets span -32"),
    Case("one-offset", "b.2", _header({"a": {"dtype": "F32", "shape": [8], "data_offsets": [0]}}), "has bad data_offsets"),
    Case("unknown-dtype", "b.2", _header({"a": entry([8], 0, 32, "F31")}), "has dtype 'F31'; accepted are F64, F32"),
    Case("dtype-a-list", "b.2", _header({"a": {"dtype": [], "shape": [8], "data_offsets": [0, 32]}}), "has dtype '[]'"),
    Case("extra-key", "b.2", _header({"a": {**entry([8], 0, 32), "code": "x"}}), "exactly dtype, shape and data_offsets"),
    Case("metadata-number", "b.2", _header({"__metadata__": {"a": 1}}, b""), "must map strings to strings"),
    Case("metadata-huge", "b.2", _header({"__metadata__": {"a": "x" * (2 << 20)}}, b""), "is larger than 1,048,576 characters"),
    Case(
        "lfs-pointer",
        "B7",
        _weights(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
        "a Git LFS pointer",
    ),
    Case("html", "B7", _weights(b"\n<!DOCTYPE html><html><body>404</body></html>"), "an HTML page"),
    Case("zeros", "b.2", _weights(bytes(4096)), "is not safetensors but zeros"),
    Case("zip-inside", "b.2", _weights(b"PK\x03\x04" + bytes(100)), "a pickle file can run code"),
    Case("directory", "B7", _is_directory, "is a directory"),
    Case("pipe", "b.2", _pipe, "is not a regular file"),
    Case("link-out", "b.2", _escape, "leads outside the model folder"),
    Case("changed-in-use", "b.2", _weights(pack({"a": np.zeros(1000)})), "was changed while in use", act=_changed_in_use),
    Case("pickle-only", "b.2", _pickle_only, "convert the model to safetensors", UnsupportedModelError),
    Case("pickle-file", "b.2", _pickle_file, "a pickle file can run code", UnsupportedModelError),
    Case("no-weights", "b.2", lambda path: folder(path, weights=b""), "no .safetensors file", ModelNotFoundError),
    Case(
        "absent-shard", "A3", _absent_shard, "lists 1 of 3 files that are not there: a-2.safetensors (an incomplete download?)"
    ),
    Case("broken-shard", "A3", _broken_shard, "a-2.safetensors: is truncated"),
    Case("index-other-file", "b.2", _index({"a": "../a.safetensors"}), "a plain name ending in .safetensors is expected"),
    Case("index-absolute", "b.2", _index({"a": "/etc/a.safetensors"}), "a plain name ending in .safetensors is expected"),
    Case("index-pickle", "b.2", _index({"a": "a.bin"}), "a plain name ending in .safetensors is expected"),
    Case("index-number", "b.2", _index({"a": 1}), "a plain name ending in .safetensors is expected"),
    Case("index-empty", "b.2", _index({}), "must map 1 to 100,000 tensor names to files"),
    Case("index-list", "b.2", _index([]), "must map 1 to 100,000 tensor names to files"),
    Case("index-not-held", "b.2", _index({"a": "a.safetensors", "z": "a.safetensors"}), "z in a.safetensors"),
    Case("no-index", "b.2", _no_index, "the index is missing", ModelError, read_all),
]
