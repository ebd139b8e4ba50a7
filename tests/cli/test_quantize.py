"""The commands around artefacts, over a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.support import main, ok, run, said
from taut.testing import tiny

pytestmark = pytest.mark.native


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny("llama", tmp_path_factory.mktemp("llama")))


@pytest.fixture(scope="module")
def artefact(llama: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("made") / "out"
    said = ok("quantize", llama, str(out), "--scheme", "int8", "--algorithm", "rtn", "--quality-windows", "0")
    assert "int8" in said and "taut verify" in said
    return str(out)


def test_plan_shows_layers_of_a_kind_once_and_writes_nothing(llama: str, tmp_path: Path) -> None:
    out = ok("plan", llama, "--scheme", "int8", "--pin", "layers.*.o=fp16")
    assert "layers.*.o" in out and "fp16" in out and "smaller" in out
    every = json.loads(ok("plan", llama, "--scheme", "int8", "--json"))
    assert {layer["layer"]["scheme"] for layer in every} == {"int8", "w8a16"} and all(layer["error"] > 0 for layer in every)
    assert all(layer["bytes_after"] < layer["bytes_before"] for layer in every)


def test_verify_passes_and_fails(artefact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "✓" in ok("verify", artefact)
    stray = Path(artefact) / "stray.txt"
    stray.write_text("x")
    try:
        assert main(monkeypatch, "verify", artefact) == 6
    finally:
        stray.unlink()


def test_inspect_shows_the_receipt(artefact: str) -> None:
    assert "made from" in ok("inspect", artefact)
    assert json.loads(ok("inspect", artefact, "--json"))["receipt"]["recipe"]["scheme"] == "int8"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--scheme", "int7"), "int8-static"),
        (("--recipe", "nothing"), "attention-fp16"),
        (("--pin", "layers.*.o"), "PATTERN=PRECISION"),
        (("--metric", "nothing.py:f"), "nothing.py"),
        (("--metric", "f"), "FILE.py:FUNCTION"),
        (("--calibration", "/no/such/file"), "/no/such/file"),
    ],
)
def test_wrong_options_are_told(
    llama: str,
    tmp_path: Path,
    arguments: tuple[str, str],
    word: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheme = ("--scheme", "int8-static") if arguments[0] == "--calibration" else ()
    code = main(
        monkeypatch,
        "quantize",
        llama,
        str(tmp_path / "out"),
        *scheme,
        *arguments,
    )
    assert code == 2
    assert word in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not (tmp_path / "out").exists()


def test_a_metric_of_ones_own_is_measured(llama: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(model):\n    return float(model.logits([1, 2, 3]).shape[0])\n")
    out = ok(
        "quantize",
        llama,
        str(tmp_path / "out"),
        "--scheme",
        "fp16",
        "--quality-windows",
        "1",
        "--metric",
        f"{tmp_path / 'mine.py'}:score",
        "--json",
    )
    assert json.loads(out)["quality"]["metric"]


def test_auto_takes_the_first_precision_that_is_close_enough(llama: str) -> None:
    result = run("inspect", llama, "--precision", "auto")
    assert result.exit_code == 0, said(result)
    assert "taken" in said(result)


def test_export_writes_a_new_folder_and_says_what_it_became(
    artefact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = str(tmp_path / "exported")
    assert "int-quantized" in ok("export", artefact, out, "--to", "compressed-tensors")
    assert json.loads((Path(out) / "config.json").read_text())["quantization_config"]["quant_method"] == "compressed-tensors"
    assert main(monkeypatch, "export", artefact, out, "--to", "compressed-tensors") == 2, "what is there stays"
    assert main(monkeypatch, "export", str(tmp_path), str(tmp_path / "x"), "--to", "gguf") == 3, "no artefact"
