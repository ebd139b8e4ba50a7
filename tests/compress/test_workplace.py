"""Where artefacts grow: one run at a time, nothing of another run in them, and full disks are told."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.compress import quantize as quantize_module
from taut.compress.export import compressed_tensors
from taut.compress.exporting import export
from taut.compress.quantize import Settings, quantize
from taut.compress.recipe import Recipe
from taut.compress.verify import verify
from taut.compress.workplace import growing
from taut.errors import CompressionError, UsageError
from taut.testing import tiny

pytestmark = pytest.mark.native
IDS = [3, 5, 8, 13]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("llama"))


def made(source: Path, out: Path, scheme: str = "fp16") -> Path:
    quantize(str(source), out, Recipe(scheme, algorithm="rtn"), settings=Settings(windows=0))
    return out


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_two_runs_do_not_share_a_place(llama: Path, tmp_path: Path) -> None:
    with growing(tmp_path / "out"), pytest.raises(UsageError, match="another run"):
        made(llama, tmp_path / "out")


def test_what_another_command_left_is_not_in_the_artefact(llama: Path, tmp_path: Path) -> None:
    work = tmp_path / "out.partial"
    (work / "1_Pooling").mkdir(parents=True)
    (work / "1_Pooling" / "config.json").write_text("{}")
    (work / "vocab.txt").write_text("x")
    out = made(llama, tmp_path / "out")
    assert not (out / "vocab.txt").exists() and not (out / "1_Pooling").exists()
    assert all(check.passed for check in verify(out))


def test_a_full_disk_is_told_and_the_next_run_goes_on(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(quantize_module.TensorFile, "write", full)
        with pytest.raises(CompressionError, match="No space left"):
            made(llama, tmp_path / "out")
    assert all(check.passed for check in verify(made(llama, tmp_path / "out")))


@pytest.mark.parametrize("to", ["compressed-tensors", "gguf"])
def test_a_full_disk_leaves_nothing_of_an_export(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    artefact = made(llama, tmp_path / "artefact")
    if to == "gguf":
        from taut.compress.export import gguf_file

        monkeypatch.setattr(gguf_file, "_write_tensors", full)
    else:
        monkeypatch.setattr(compressed_tensors, "_copy_texts", full)
    with pytest.raises(CompressionError, match="No space left"):
        export(str(artefact), tmp_path / "out", to)
    assert {path.name for path in tmp_path.iterdir()} == {"artefact"}


@pytest.mark.parametrize("out", ["a" * 300, "file/out"])
@pytest.mark.parametrize("to", ["compressed-tensors", "gguf"])
def test_an_export_that_cannot_be_written_is_told(llama: Path, tmp_path: Path, out: str, to: str) -> None:
    artefact = made(llama, tmp_path / "artefact")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CompressionError, match="writing"):
        export(str(artefact), tmp_path / out, to)


def test_floats_are_exported_as_a_plain_model(llama: Path, tmp_path: Path) -> None:
    """As compressed-tensors too, since nothing in it is compressed; it loads, and answers what the artefact answers."""
    artefact = made(llama, tmp_path / "artefact", "fp32")
    assert export(str(artefact), tmp_path / "out", "compressed-tensors").formats == {"float32": 29}
    np.testing.assert_array_equal(
        taut.load(str(tmp_path / "out"), precision="fp32").logits(IDS), taut.load(str(artefact)).logits(IDS)
    )


def test_an_encoders_export_has_its_modules(tmp_path: Path) -> None:
    source = tiny("bert", tmp_path / "bert")
    artefact = made(source, tmp_path / "artefact", "fp32")
    export(str(artefact), tmp_path / "out", "compressed-tensors")
    np.testing.assert_array_equal(
        taut.load(str(tmp_path / "out"), precision="fp32").embed_ids([IDS]),
        taut.load(str(source), precision="fp32").embed_ids([IDS]),
    )
