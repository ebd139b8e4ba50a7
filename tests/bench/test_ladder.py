"""The ladder: which rungs there are, in which order they are run, what is made of their samples; and, natively, tiny models from end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from taut.bench.ladder import climb, figures, rungs, show
from taut.cli import main as main_module
from taut.cli.console import check_writable
from taut.errors import TautError, UsageError
from taut.passes.pipeline import PIPELINE

ENCODER = {"length": 64, "batch": 2, "reps": 1, "least": 2}
DECODER = {"prompt": 100, "gen": 4, "batch": 2, "reps": 1}
LIMITS = {"isa": "numpy", "int8_tops": 1.0, "bf16_tflops": None, "fp32_tflops": 0.25, "read_gb_s": 10.0}


def course(kind: rungs.Kind, **options: Any) -> climb.Course:
    seen = climb.Outlook("m", kind, 256, Path("/models/m"), "mean")
    load = ENCODER if kind == "encoder" else DECODER
    return climb.Course("m", seen, load, ["taut-child"], **{"texts": 3, "rounds": 2, **options})


class Children:
    """Stands in for the processes: remembers what was asked, answers with times that depend on the rung."""

    def __init__(self, **missing: str) -> None:
        self.asked: list[tuple[list[str], dict[str, Any]]] = []
        self.missing = missing

    def __call__(self, command: Sequence[str], spec: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append((list(command), dict(spec)))
        precision = spec["options"]["precision"]
        if precision in self.missing:
            return {"missing": self.missing[precision]}
        slow = {"fp32": 4.0, "fp16": 3.0, "bf16": 3.0}.get(precision, 1.0) * len(self.asked)
        encoder = {"batches_s": [0.1 * slow, 0.2 * slow], "of_limit": 0.5}
        decoder = {"prefill_s": slow, "steps_s": [0.1 * slow] * 4, "of_limit": {"prefill": 0.5, "decode": 0.25}}
        return {
            "repetitions": [encoder if "length" in spec["load"] else decoder],
            "rss_before_bytes": 100,
            "rss_bytes": 1100,
            "load_s": 1.0,
            "quality": None if not spec["texts"] else {"kl": 0.5, "top1": 0.75, "mean_cosine": 0.9, "least_cosine": 0.8},
            "limits": LIMITS,
        }


def test_rungs_are_the_product_s_own_switches() -> None:
    assert [rung.key for rung in rungs.ladder("encoder")][:5] == ["pytorch", "fp32", "fp16", "int8", "fused"]
    assert [rung.key for rung in rungs.ladder("decoder")][:4] == ["no-cache", "bf16", "int8", "fused"]
    names = {name for name, _ in PIPELINE}
    for rung in (*rungs.ladder("encoder"), *rungs.ladder("decoder")):
        assert set(rung.options()["disable_passes"]) <= names
        assert bool(rung.options()["disable_passes"]) is not rung.is_fused
    assert "fuse_qkv" in rungs.FUSIONS
    assert "quantize" not in rungs.FUSIONS


def test_a_rung_is_there_if_its_switch_is() -> None:
    without = rungs._decoder(False, ("int8", "bf16"))
    assert [rung.key for rung in without] == ["no-cache", "bf16", "int8", "fused"]
    assert all("attention" not in rung.options() for rung in without)
    everything = rungs._decoder(True, ("int8", "bf16", "int4-g64", "int4-g128"))
    assert [rung.key for rung in everything][-2:] == ["flash", "int4"]
    assert [rung.options().get("attention") for rung in everything] == ["plain"] * 4 + ["auto"] * 2
    assert (everything[-1].precision, everything[-1].title) == ("int4-g128", "int4-g128 + fusion + flash attention")


def test_choosing_rungs() -> None:
    assert [rung.key for rung in rungs.choose("decoder", ["fused", "bf16"])] == ["bf16", "fused"]
    with pytest.raises(UsageError, match="no rung named pytorch, x for a decoder; rungs: no-cache, bf16"):
        rungs.choose("decoder", ["x", "pytorch", "bf16"])
    with pytest.raises(UsageError, match="no rung named x for an encoder"):
        rungs.choose("encoder", ["x"])
    with pytest.raises(UsageError, match="no rung is given"):
        rungs.choose("encoder", [])


def test_up_and_down_again() -> None:
    children = Children()
    found = climb.climb(course("encoder", peer_python="peer"), rungs.choose("encoder", None), ask=children)
    commands = [
        (command[0], spec["options"]["precision"], len(spec["options"]["disable_passes"]) > 0)
        for command, spec in children.asked
    ]
    up = [("peer", "fp32", True), *(("taut-child", p, True) for p in ("fp32", "fp16", "int8")), ("taut-child", "int8", False)]
    assert commands == [("taut-child", "fp32", False), *up, *reversed(up)]
    assert [spec["task"] for _, spec in children.asked][:3] == ["reference", "pytorch", "measure"]
    # Quality is judged once, memory and time in every round.
    assert [spec["texts"] for _, spec in children.asked] == [3] * 6 + [0] * 5
    assert all(len(one.answers) == 2 for one in found)


def test_what_cannot_run_is_kept_with_its_reason() -> None:
    result_of = lambda found, made: figures.result(made, found)  # noqa: E731
    made = course("encoder")
    children = Children(fp16="the model has odd sizes")
    result = result_of(climb.climb(made, rungs.choose("encoder", None), ask=children), made)
    assert [rung.get("missing") for rung in result["rungs"]] == [None, None, "the model has odd sizes", None, None]
    assert sum(spec["options"]["precision"] == "fp16" for _, spec in children.asked) == 1
    assert "not run" in show.table(result)
    assert "Not run, “fp16 weights, no fusion”: the model has odd sizes." in show.notes(result)
    with pytest.raises(UsageError, match="--texts 0"):
        climb.climb(made, rungs.choose("encoder", ["int8"]), ask=Children(fp32="no"))


def test_a_rung_that_dies_leaves_the_others() -> None:
    """A process killed for its memory after an hour must not cost what was measured."""
    children = Children()

    def ask(command: Sequence[str], spec: Mapping[str, Any]) -> dict[str, Any]:
        if spec["options"]["precision"] == "fp16":
            raise TautError("a run ended early: Killed")
        return children(command, spec)

    made = course("encoder")
    result = figures.result(made, climb.climb(made, rungs.choose("encoder", None), ask=ask))
    assert [rung.get("missing") for rung in result["rungs"]] == [None, None, "a run ended early: Killed", None, None]
    assert result["summary"]["last"] == "fused"


def test_encoder_figures() -> None:
    made = course("encoder", texts=0, rounds=1)
    result = figures.result(made, climb.climb(made, rungs.choose("encoder", ["fp32", "fused"]), ask=Children()))
    first, last = result["rungs"]
    assert first["requests_per_s"] == pytest.approx(2 / 0.6)
    assert (first["p50_ms"], first["samples"], first["memory_bytes"]) == (pytest.approx(600), 2, 1000)
    assert first["p99_ms"] == pytest.approx(796)
    assert result["summary"] == {
        "first": "fp32",
        "last": "fused",
        "throughput": pytest.approx(2.0),
        "p99": pytest.approx(2.0),
        "memory": pytest.approx(1.0),
    }
    assert last["of_limit"] == 0.5
    assert show.notes(result)[-1].startswith(
        "From “fp32, no fusion” to “int8 + fusion”, times better: throughput 2.00 ×, P99 2.00 ×"
    )


def test_decoder_figures() -> None:
    made = course("decoder", rounds=1)
    result = figures.result(made, climb.climb(made, rungs.choose("decoder", ["no-cache", "bf16", "int8"]), ask=Children()))
    aside, first, last = result["rungs"]
    assert (aside["is_aside"], first["is_aside"]) == (True, False)
    assert first["requests_per_s"] == pytest.approx(2 / (9.0 + 4 * 0.9))
    assert first["prefill_tokens_per_s"] == pytest.approx(2 * 100 / 9.0)
    assert (first["decode_ms"], first["samples"]) == (pytest.approx(900), 4)
    assert last["of_limit"] == {"prefill": 0.5, "decode": 0.25}
    assert result["summary"]["first"] == "bf16"
    assert result["summary"]["decode"] == pytest.approx(9 / 4)
    shown = show.table(result)
    assert "(bf16 weights, no KV cache)" in shown
    assert "75.0%" in shown
    assert len({len(line) for line in shown.splitlines()}) == 1
    json.dumps(result)


def test_one_rung_has_no_summary() -> None:
    made = course("encoder")
    result = figures.result(made, climb.climb(made, rungs.choose("encoder", ["int8"]), ask=Children()))
    assert result["summary"] is None


def test_sizes_are_checked_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="104 tokens are asked for, m takes 64"):
        climb.Course("m", climb.Outlook("m", "decoder", 64, None, "mean"), DECODER, [])
    with pytest.raises(UsageError, match="at least 1"):
        course("encoder", rounds=0)


def test_a_child_that_dies_says_why() -> None:
    spec = {"task": "measure", "options": {"precision": "int8"}}
    dying = [sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit('out of paper')"]
    with pytest.raises(TautError, match="ended early: out of paper"):
        climb.ask_process(dying, spec)
    with pytest.raises(UsageError, match="'/no/python' cannot be run"):
        climb.ask_process(["/no/python"], spec)
    talking = [sys.executable, "-c", "import sys; sys.stdin.read(); print('a warning'); print('{\"missing\": \"x\"}')"]
    assert climb.ask_process(talking, spec) == {"missing": "x"}


def test_a_peer_without_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(climb.pytorch, "NEEDED", ("numpy", "no_such_module_at_all"))
    monkeypatch.setattr(sys, "stdin", type("In", (), {"read": lambda self: "{}"})())
    climb.pytorch.main()
    assert "not installed: no_such_module_at_all (--peer-python" in json.loads(capsys.readouterr().out)["missing"]


def test_a_ladder_without_a_single_rung_fails(tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climb, "ask_process", lambda *_: {"missing": "not installed: torch"})
    command = ["bench", "ladder", str(tiny_models["roberta"]), "--length=24", "--rungs=pytorch", "--texts=0"]
    done = CliRunner().invoke(main_module.app, command, catch_exceptions=True)
    assert isinstance(done.exception, UsageError)
    assert "no rung could be run" in str(done.exception)
    assert "not installed: torch" in done.output


def test_a_plot_needs_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(main_module.app, ["bench", "ladder", "nowhere", "--plot", "x.png"], catch_exceptions=True)
    assert isinstance(done.exception, UsageError)
    assert "pip install 'taut[plot]'" in str(done.exception)


def test_options_of_the_other_kind_are_refused(tiny_models: dict[str, Path]) -> None:
    for family, option in (("llama", "--length=8"), ("roberta", "--prompt=8")):
        done = CliRunner().invoke(main_module.app, ["bench", "ladder", str(tiny_models[family]), option], catch_exceptions=True)
        assert isinstance(done.exception, UsageError)
        assert f"{option.partition('=')[0]} is for a{'n encoder' if family == 'llama' else ' decoder'}" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "/no/such/folder/x.json"], "cannot write '/no/such/folder/x.json': No such file"),
        (["--json", "/"], "cannot write '/': Is a directory"),
        (["--json", "/proc/version"], "cannot write '/proc/version': "),
        (["--json", "x" * 300], "File name too long"),
        (["--plot", "/no/such/folder/x.png"], "No such file or directory; give a file"),
        (["--plot", "picture.docx"], "no picture of the kind of 'picture.docx' can be drawn; accepted endings: "),
        (["--plot", "picture"], "accepted endings: "),
        (["--peer-python", "/no/python"], "--peer-python '/no/python' is no program; give the path"),
        (["--rungs", "fast,int8"], "no rung named fast for a decoder; rungs: "),
        (["--rungs", ","], "no rung is given; rungs: "),
        (["--prompt", "100000"], "tokens are asked for, "),
    ],
)
def test_what_would_fail_in_the_end_is_refused_at_once(
    tiny_models: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], message: str
) -> None:
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    monkeypatch.setattr(climb, "climb", lambda *_: pytest.fail("nothing may run"))
    monkeypatch.chdir(tmp_path)
    command = ["bench", "ladder", str(tiny_models["llama"]), *arguments]
    error = CliRunner().invoke(main_module.app, command, catch_exceptions=True).exception
    assert isinstance(error, UsageError), error
    assert message in str(error)
    assert list(tmp_path.iterdir()) == []


def test_checking_a_file_leaves_it_as_it_is(tmp_path: Path) -> None:
    there, absent = tmp_path / "there.json", tmp_path / "absent.json"
    there.write_text("old")
    for path in (there, absent):
        check_writable(path)
    assert there.read_text() == "old"
    assert not absent.exists()


@pytest.mark.native
@pytest.mark.parametrize("family", ["llama", "roberta"])
def test_tiny_models_from_end_to_end(tiny_models: dict[str, Path], tmp_path: Path, family: str) -> None:
    sizes = (
        ["--prompt=40", "--gen=4", "--rungs=no-cache,bf16,fused"]
        if family == "llama"
        else ["--length=24", "--rungs=fp32,fused"]
    )
    record, picture = tmp_path / "ladder.json", tmp_path / "ladder.png"
    arguments = [
        "bench",
        "ladder",
        str(tiny_models[family]),
        *sizes,
        "--requests=4",
        "--rounds=1",
        "--texts=2",
        f"--json={record}",
    ]
    done = CliRunner().invoke(main_module.app, [*arguments, f"--plot={picture}"], catch_exceptions=False)
    assert done.exit_code == 0
    saved = json.loads(record.read_text())
    result = saved["result"]
    assert {"commit", "packages", "cpu"} <= set(saved["machine"])
    assert {"isa", "threads", "int8_tops"} <= set(result["limits"])
    first, last = result["rungs"][-2:]
    assert "times better: throughput" in done.output
    assert first["memory_bytes"] > 0
    if family == "llama":
        assert result["rungs"][0]["estimated_from_passes"] == 4
        assert 0 < first["quality"]["kl"] < last["quality"]["kl"] < 0.1
    else:
        assert last["quality"]["least_cosine"] < first["quality"]["least_cosine"] <= 1.000001
        assert last["quality"]["least_cosine"] > 0.99
    assert picture.read_bytes().startswith(b"\x89PNG")
