"""Sound safetensors files: what is read equals what the safetensors package wrote, without a copy."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hostile.raw import entry, folder, pack, safetensors, sharded, write
from taut import checkpoint
from taut.checkpoint.safetensors import SafetensorsFile, SafetensorsFolder


def test_reads_what_the_reference_package_writes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    written = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal((2, 2, 2)).astype(np.float16),
        "i64": np.arange(7),
        "u8": np.arange(9, dtype=np.uint8).reshape(3, 3),
        "bool": np.array([True, False]),
        "scalar": np.array(2.5, np.float64),
        "empty": np.zeros((0, 4), np.float32),
    }
    save_file(written, tmp_path / "model.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "model.safetensors")
    assert set(file.tensors) == set(written)
    for name, values in written.items():
        read = file.read(name)
        assert read.dtype == values.dtype == np.dtype(file.tensors[name].dtype)
        assert read.shape == values.shape == file.tensors[name].shape
        assert file.tensors[name].nbytes == values.nbytes
        np.testing.assert_array_equal(read, values)
    file.close()


def test_bfloat16(tmp_path: Path) -> None:
    values = np.array([[1.5, -2.0], [0.0, 3e38]], ml_dtypes.bfloat16)
    write(tmp_path / "a.safetensors", safetensors({"a": entry([2, 2], 0, 8, "BF16")}, values.tobytes()))
    file = SafetensorsFile(tmp_path / "a.safetensors")
    assert file.tensors["a"].dtype == "bfloat16"
    assert file.read("a").dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(file.read("a"), values)
    file.close()


def test_a_tensor_is_a_read_only_view_that_outlives_the_file(tmp_path: Path) -> None:
    path = folder(tmp_path, weights=pack({"a": np.arange(1000.0)}))
    opened = checkpoint.open(str(path))
    first, second = opened.read("a"), opened.read("a")
    assert first.ctypes.data == second.ctypes.data  # the same bytes of the mapped file
    assert not first.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    opened.close()
    (path / "model.safetensors").unlink()
    np.testing.assert_array_equal(first, np.arange(1000.0))
    with pytest.raises(ValueError, match="closed"):
        opened.read("a")


def test_shards_read_as_one(tmp_path: Path) -> None:
    sharded(tmp_path, {"m-1.safetensors": {"a": np.ones(2)}, "m-2.safetensors": {"b": np.full(3, 2.0), "c": np.zeros(1)}})
    with checkpoint.open(str(tmp_path)) as opened:
        assert set(opened.tensors) == {"a", "b", "c"}
        assert opened.read("b").tolist() == [2.0, 2.0, 2.0]
        assert opened.warnings == ()


def test_a_stray_file_beside_the_shards_is_not_read(tmp_path: Path) -> None:
    """mlx-vlm 1464: a stray model.safetensors was merged in."""
    sharded(tmp_path, {"m-1.safetensors": {"a": np.ones(2)}})
    write(tmp_path / "model.safetensors", pack({"a": np.full(2, 9.0), "z": np.ones(1)}))
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.read("a").tolist() == [1.0, 1.0]
        assert set(opened.tensors) == {"a"}
        assert any("model.safetensors is not read" in warning for warning in opened.warnings)


def test_a_tensor_that_the_index_does_not_list_is_reported(tmp_path: Path) -> None:
    sharded(tmp_path, {"m-1.safetensors": {"a": np.ones(2), "extra": np.ones(2)}}, {"a": "m-1.safetensors"})
    folder_of_shards = SafetensorsFolder(tmp_path)
    assert set(folder_of_shards.tensors) == {"a"}
    assert "extra in m-1.safetensors" in folder_of_shards.warnings[0]
    folder_of_shards.close()


def test_the_listed_shard_decides_when_two_hold_a_tensor(tmp_path: Path) -> None:
    shards = {"m-1.safetensors": {"a": np.ones(1)}, "m-2.safetensors": {"a": np.full(1, 2.0), "b": np.ones(1)}}
    sharded(tmp_path, shards, {"a": "m-1.safetensors", "b": "m-2.safetensors"})
    with checkpoint.open(str(tmp_path)) as opened:
        assert opened.read("a").tolist() == [1.0]
        assert "a in m-2.safetensors" in opened.warnings[0]


def test_one_file_of_another_name_is_the_model(tmp_path: Path) -> None:
    folder(tmp_path, weights=b"")
    write(tmp_path / "weights.safetensors", pack({"a": np.ones(1)}))
    with checkpoint.open(str(tmp_path)) as opened:
        assert set(opened.tensors) == {"a"}
