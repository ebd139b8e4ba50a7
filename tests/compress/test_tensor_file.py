"""The file of an artefact's weights: what is written is read, and an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taut.checkpoint.safetensors import SafetensorsFile
from taut.compress.tensor_file import Entry, TensorFile

pytestmark = pytest.mark.fast


def interrupted(path: Path, count: int, entries: list[Entry] | None = None, tag: str = "x") -> int:
    """Writes `count` entries and is interrupted; how many were there already."""
    done = -1
    try:
        with TensorFile(path, entries or ENTRIES, tag) as file:
            done = file.done
            for array in arrays()[:count]:
                file.write(array)
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return done


ENTRIES: list[Entry] = [("a", "int8", (3, 5)), ("a.scale", "float32", (3,)), ("b", "bfloat16", (2, 2)), ("c", "float16", (4,))]


def arrays() -> list[np.ndarray]:
    import ml_dtypes

    kinds = {"bfloat16": ml_dtypes.bfloat16}
    return [np.arange(np.prod(shape)).reshape(shape).astype(kinds.get(dtype, dtype)) for _, dtype, shape in ENTRIES]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with TensorFile(path, ENTRIES, "x") as file:
        for array in arrays():
            file.write(array)
    stored = SafetensorsFile(path)
    for (name, _, _), array in zip(ENTRIES, arrays(), strict=True):
        np.testing.assert_array_equal(stored.read(name), array)
    stored.close()
    with TensorFile(path, ENTRIES, "x") as file:
        assert file.done == len(ENTRIES), "what is complete is not made again"
    TensorFile.forget(path)
    assert [item.name for item in tmp_path.iterdir()] == [path.name]


def test_an_interrupted_file_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    with TensorFile(whole, ENTRIES, "x") as file:
        for array in arrays():
            file.write(array)
    interrupted(cut, 2)
    with cut.open("ab") as out:
        out.write(b"half a tensor")  # as a killed process leaves it
    with TensorFile(cut, ENTRIES, "x") as file:
        assert file.done == 2
        for array in arrays()[2:]:
            file.write(array)
    assert cut.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("change", ["tag", "journal", "entries"])
def test_another_run_begins_anew(tmp_path: Path, change: str) -> None:
    path = tmp_path / "f"
    interrupted(path, 1)
    if change == "journal":
        path.with_name("f.done").write_text('{"tag": "x", "done": -7}')
    entries: list[Entry] = [("z", "int8", (3, 5)), *ENTRIES[1:]] if change == "entries" else ENTRIES
    assert interrupted(path, 0, entries, "y" if change == "tag" else "x") == 0


def test_a_file_with_missing_tensors_is_not_complete(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 of 4"), TensorFile(tmp_path / "f", ENTRIES, "x") as file:
        file.write(arrays()[0])
