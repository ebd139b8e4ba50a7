"""The receipt's own form and digest, and what is said of choices that had no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from taut.checkpoint import receipt_file
from taut.compress import quantize as quantize_module
from taut.compress.artefact import open_artefact
from taut.compress.quantize import Settings, quantize
from taut.compress.recipe import Recipe
from taut.compress.verify import verify
from taut.errors import CompressionError, ModelFormatError, UsageError
from taut.testing import tiny

pytestmark = pytest.mark.native
FIELDS = (
    "taut",
    "made_from",
    "recipe",
    "observer",
    "layers",
    "fallbacks",
    "calibration",
    "warnings",
    "quality",
    "files",
    "digest",
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny("llama", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def artefact(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    quantize(str(llama), out, Recipe("int8", algorithm="rtn"), settings=Settings(windows=0))
    return out


def edited(artefact: Path, to: Path, **fields: Any) -> Path:
    """A copy whose receipt has these fields; None: without them."""
    to.mkdir()
    for path in artefact.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    receipt = json.loads((artefact / "receipt.json").read_text()) | fields
    (to / "receipt.json").write_text(json.dumps({name: value for name, value in receipt.items() if value is not ...}))
    return to


def test_a_receipt_written_anew_is_the_same(artefact: Path, tmp_path: Path) -> None:
    assert all(check.passed for check in verify(edited(artefact, tmp_path / "copy")))


@pytest.mark.parametrize("value", [..., 3, "x", {"a": 1}, [1], [{}]])
@pytest.mark.parametrize("field", FIELDS)
def test_an_edited_receipt_is_no_receipt(artefact: Path, tmp_path: Path, field: str, value: Any) -> None:
    copy = edited(artefact, tmp_path / "copy", **{field: value})
    with pytest.raises(ModelFormatError, match=r"receipt\.json"):
        open_artefact(copy)
    checks = verify(copy)
    assert [check.name for check in checks if not check.passed] == ["receipt"]
    model = taut.load(str(copy))
    with pytest.raises(ModelFormatError, match=r"receipt\.json"):
        _ = model.receipt


def test_better_figures_are_noticed(artefact: Path, tmp_path: Path) -> None:
    """Of the right form, with the old digest."""
    copy = edited(artefact, tmp_path / "copy", quality={"kind": "decoder", "overall": {"kl": 0.0}})
    with pytest.raises(ModelFormatError, match="was changed"):
        receipt_file.read(copy)


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        (Recipe("int8", algorithm="rtn", observer="ema"), "observer ema"),
        (Recipe("int8", algorithm="rtn", symmetric=True), "symmetric"),
        (Recipe("fp16", algorithm="smoothquant"), "smoothquant"),
        (Recipe("fp16", algorithm="imatrix"), "imatrix"),
        (Recipe("int8", algorithm="rtn"), "calibration text was not read"),
    ],
)
def test_choices_without_effect_are_said(llama: Path, tmp_path: Path, recipe: Recipe, word: str) -> None:
    texts = [f"Text number {i} of a few." for i in range(20)]
    made = quantize(str(llama), tmp_path / "out", recipe, calibration=texts, settings=Settings(windows=0))
    assert sum(word in warning for warning in made.receipt["warnings"]) == 1


def test_a_recipe_without_idle_choices_warns_of_nothing(artefact: Path) -> None:
    assert open_artefact(artefact).receipt["warnings"] == []


def test_answers_that_are_not_finite_make_no_artefact(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize_module.golden, "answer", lambda _: (np.array([1], np.int32), np.array([np.nan], np.float32)))
    with pytest.raises(CompressionError, match="not finite"):
        quantize(str(llama), tmp_path / "out", Recipe("fp16"), settings=Settings(windows=0))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["a" * 300, "file/out", "nul\0byte"])
def test_a_place_that_cannot_be_is_told_before_anything_is_done(llama: Path, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write"):
        quantize(str(llama), tmp_path / out, Recipe("int8", algorithm="rtn"), settings=Settings(windows=0))


def test_a_cache_that_cannot_be_is_told_before_calibration(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot write"):
        quantize(str(llama), tmp_path / "out", Recipe("int8"), settings=Settings(0, stats_cache=tmp_path / "file"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_a_metric_that_ends_the_program_is_a_failed_metric(llama: Path, tmp_path: Path) -> None:
    def leave(_: Any) -> float:
        raise SystemExit(0)

    with pytest.raises(UsageError, match="SystemExit"):
        quantize(str(llama), tmp_path / "out", Recipe("fp16"), settings=Settings(windows=0, metric=leave))
