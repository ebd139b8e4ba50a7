"""The comparison with peers: who runs when, what is made of it, how it is written down. Peers are played; taut's own side is real."""

from __future__ import annotations

import importlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PEERS = Path(__file__).parents[2] / "bench" / "peers"
MODULES = ("common", "document", "models", "run", "worker", "onnx_export", "systems")


@pytest.fixture
def peers() -> Iterator[dict[str, Any]]:
    """bench/peers' modules, which are scripts and no package; forgotten again afterwards."""
    path = list(sys.path)
    sys.path[:0] = [str(PEERS), str(PEERS.parent)]
    yield {name: importlib.import_module(name) for name in ("common", "document", "models", "run", "worker")}
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] in MODULES]:
        del sys.modules[name]


class Played:
    """Answers for every system; the second run of each side is slower."""

    def __init__(self, missing: str = "") -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.missing = missing

    def __call__(self, python: str, verb: str, spec: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((verb, spec["system"], spec["variant"]))
        if spec["variant"] == self.missing:
            return {"missing": "not installed: it"}
        if verb != "measure":
            return {}
        if spec["quality_ids"]:
            noise = 0.0 if spec["variant"] == "fp32" and spec["system"] == "taut" else 0.1
            vectors = {f"answer{i}": np.ones(4, np.float32) + noise * np.eye(4)[i % 4] for i in range(len(spec["quality_ids"]))}
            np.savez(spec["answers"], **vectors)
        slow = 1.0 if spec["system"] == "taut" else 2.0
        rates = {"int8_tops": 1.0, "bf16_tflops": None, "fp32_tflops": 0.25, "read_gb_s": 10.0}
        shared = {
            "version": f"{spec['system']} 1.0",
            "rss_bytes": int(1e9 * slow),
            "limits": {"isa": "avx2", "threads": 2, **rates},
        }
        if spec["work"] == "sentences":
            case = {"sentences_per_s": 8 / slow, "best_way": "one call", "of_limit": 0.5}
            return {**shared, "cases": dict.fromkeys(spec["cases"], case)}
        return {**shared, "requests_per_s": 10 / slow, "p50_ms": 5 * slow, "p99_ms": 8 * slow, "of_limit": 0.5}


def options(run: Any, work: str, model: Path, *more: str) -> Any:
    return run.parsed([work, "--model", str(model), "--length", "16", "--batch", "2", *more])


def test_a_b_b_a_and_what_comes_of_it(peers: dict[str, Any], tiny_models: dict[str, Path], tmp_path: Path) -> None:
    run, played = peers["run"], Played(missing="bf16")
    result = run.compare(options(run, "encoder", tiny_models["roberta"]), "encoder", 2, played)
    assert [(one["system"], one["variant"]) for one in result["comparisons"]] == [
        ("PyTorch", "fp32"),
        ("PyTorch", "int8"),
        ("ONNX Runtime", "int8"),
        ("OpenVINO", "int8"),
    ]
    assert result["missing"] == [{"system": "OpenVINO", "variant": "bf16", "missing": "not installed: it"}]
    first = [(verb, system) for verb, system, variant in played.asked if (system, variant) != ("taut", "fp32")][:6]
    measured = [("measure", name) for name in ("taut", "pytorch", "pytorch", "taut")]
    assert first == [("find", "pytorch"), ("prepare", "pytorch"), *measured]
    assert result["comparisons"][0]["ratio"] == {"requests_per_s": 2.0, "p99_ms": 2.0, "rss_bytes": 2.0}
    assert 0.99 < result["comparisons"][0]["quality"]["least_cosine"] < 0.9999
    assert set(result["quality"]) == {"int8"}
    assert result["busy_cores"] >= 0
    result["busy_cores"] = 1.5
    record = {"command": "c", "time": "2026-01-01T00:00:00", "result": result}
    record["machine"] = {"cpu": "a test's", "cores": 2, "memory_gb": 8, "packages": {"taut": "0"}, "commit": "abc"}
    (tmp_path / "peers-encoder-tiny.json").write_text(json.dumps(record))
    text = peers["document"].write(tmp_path, tmp_path).read_text()
    assert "| pytorch 1.0, fp32 | 5.00 |" in text
    assert "Not run: OpenVINO bf16 (not installed: it)." in text
    assert "commit abc" in text
    assert "**The machine was busy** (others used 1.5 cores before)" in text
    assert "![peers-encoder-tiny](benchmarks/peers-encoder-tiny.png)" in text
    assert (tmp_path / "benchmarks" / "peers-encoder-tiny.png").read_bytes().startswith(b"\x89PNG")


def test_sentences_have_a_figure_each_case(peers: dict[str, Any], tiny_models: dict[str, Path]) -> None:
    run = peers["run"]
    chosen = options(run, "sentences", tiny_models["bert"], "--windows", "0", "--systems", "openvino:int8")
    result = run.compare(chosen, "sentences", 1, Played())
    ratio = result["comparisons"][0]["ratio"]
    assert ratio == {f"{words} words, {count} at once": 2.0 for words, count in run.CASES} | {"rss_bytes": 2.0}
    shown = peers["document"].table(result)
    assert "| openvino 1.0, int8 | 4 | 4 | 4 | 4 |" in shown
    with pytest.raises(SystemExit, match="is a decoder"):
        run.compare(options(run, "encoder", tiny_models["llama"]), "encoder", 1, Played())


def test_interpreters_and_precisions(peers: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    run = peers["run"]
    chosen = run.parsed(
        ["decoder", "--peer-python", "all", "--peer-python", "llamacpp=one", "--systems", "llamacpp:q8_0", "openvino_genai"]
    )
    assert list(run.variants(chosen, "decoder")) == [
        ("llamacpp", "q8_0", "one"),
        ("openvino_genai", "int8", "all"),
        ("openvino_genai", "int4", "all"),
    ]
    monkeypatch.setattr(run, "PRECISIONS", ("int8", "fp32"))
    assert run.ours_for("q4_0", None) == "int8"
    monkeypatch.setattr(run, "PRECISIONS", ("int8", "int4-g128"))
    assert [run.ours_for(variant, None) for variant in ("q4_k_m+no-repack", "int4", "q8_0")] == [
        "int4-g128",
        "int4-g128",
        "int8",
    ]
    assert run.ours_for("q4_0", "fp32") == "fp32"


def test_an_absent_peer_is_no_error(
    peers: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("llamacpp", "openvino_genai", "pytorch", "onnxruntime", "openvino", "taut"):
        module = importlib.import_module(f"systems.{name}")
        assert set(module.NEEDS) == set(module.VARIANTS)
        assert callable(module.prepare) and callable(module.measure)
    monkeypatch.setitem(importlib.import_module("systems.pytorch").NEEDS, "encoder", ("no_such_module.at_all", "json"))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"system": "pytorch", "work": "encoder"})))
    monkeypatch.setattr(sys, "argv", ["worker.py", "measure"])
    peers["worker"].main()
    assert json.loads(capsys.readouterr().out) == {"missing": "not installed: no_such_module.at_all"}
    run = peers["run"]
    assert "cannot be run" in run.ask("/no/python", "find", {"system": "pytorch"})["missing"]
    assert run.ask(sys.executable, "find", {"system": "nonesuch", "work": "encoder"})["missing"].startswith("find failed: ")
    with pytest.raises(SystemExit, match="taut itself"):
        run.ask(sys.executable, "measure", {"system": "taut", "work": "no such work"})


def test_the_common_clock(peers: dict[str, Any], tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    common = peers["common"]
    spec = {"vocab_size": 300, "batch": 2, "prompt": 5, "gen": 3, "reps": 2, "length": 4, "pooling": "mean"}
    result = common.decoder(spec, lambda prompts, gen: (float(prompts.size), [0.25] * gen))
    assert (result["prefill_tokens_per_s"], result["decode_ms"], len(result["repetitions"])) == (1.0, 250.0, 2)
    monkeypatch.setattr(common, "BURST_S", 0.0)
    assert common.encoder(spec, lambda ids, mask: ids)["batches"] == 2 * len(common.burst(lambda: None))
    hidden = np.array([[[3.0, 0.0], [0.0, 4.0], [9.0, 9.0]]])
    mask = np.array([[1, 1, 0]])
    np.testing.assert_allclose(common.pooled(spec, hidden, mask), [[0.6, 0.8]], atol=1e-7)
    np.testing.assert_allclose(common.pooled({"pooling": "cls"}, hidden, mask), [[1.0, 0.0]])
    seen: list[tuple[int, ...]] = []
    texts = ["a cat", "a much longer text about a cat and a dog"] * 6
    cases = {"model": str(tiny_models["bert"]), "cases": {"all": texts, "one": texts[:1]}}
    found = common.sentences(cases, lambda ids, mask: seen.append((*ids.shape, int(mask.sum()))))
    assert {shape[0] for shape in seen} == {12, 1, 8, 4}
    assert all(total <= rows * length for rows, length, total in seen)
    assert found["cases"]["one"]["best_way"] == "one by one"


def test_texts_are_uneven_and_always_the_same(peers: dict[str, Any]) -> None:
    models = peers["models"]
    texts = models.uneven_texts(12, 32)
    lengths = [len(text.split()) for text in texts]
    assert (min(lengths) >= 6, max(lengths) <= 18, len(set(lengths)) > 5) == (True, True, True)
    assert texts == models.uneven_texts(12, 32)
    assert len(models.uneven_texts(80, 1)[0].split()) == 80


@pytest.mark.native
def test_taut_s_own_side(peers: dict[str, Any], tiny_models: dict[str, Path], tmp_path: Path) -> None:
    run, models = peers["run"], peers["models"]
    for work, family in (("decoder", "llama"), ("encoder", "roberta"), ("sentences", "bert")):
        chosen = options(run, work, tiny_models[family], "--prompt", "20", "--gen", "2", "--reps", "1", "--window-len", "32")
        spec = run.base_spec(chosen, work, 2, models.prepared(str(tiny_models[family])))
        spec["cases"] = {"few": ["a cat", "a dog and a cat"]}
        answer = run.ask(
            sys.executable, "measure", {**spec, "system": "taut", "variant": "int8", "answers": str(tmp_path / "a.npz")}
        )
        share = answer["cases"]["few"]["of_limit"] if work == "sentences" else answer["of_limit"]
        assert 0 < (share["decode"] if work == "decoder" else share) < 1
        assert set(run.figures(work, answer)) >= {"rss_bytes"}
        with np.load(tmp_path / "a.npz") as given:
            assert len(given.files) == len(spec["quality_ids"]) > 0
            assert given["answer0"].shape == ((32, 320) if work == "decoder" else (96,))


@pytest.mark.parity
def test_beside_pytorch(peers: dict[str, Any], tiny_models: dict[str, Path]) -> None:
    pytest.importorskip("torch")
    run = peers["run"]
    chosen = options(run, "encoder", tiny_models["roberta"], "--reps", "1", "--systems", "pytorch:fp32")
    (found,) = run.compare(chosen, "encoder", 1)["comparisons"]
    assert found["quality"]["least_cosine"] > 0.99999
    assert found["version"].startswith("PyTorch ")
