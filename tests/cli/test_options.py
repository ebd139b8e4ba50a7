"""Options and their environment twins: what is accepted, what a refusal says, how help reads."""

from __future__ import annotations

from typing import Any

import pytest

from cli.support import Model, main, ok, run, said
from taut import env


def test_model_options_and_their_twins(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    flags = "--precision fp32 --threads 2 --memory 4GiB --max-context 99 --executor reference --disable-pass a --disable-pass b --exact"
    flags += " --pin a=fp16 --pin b=int8"
    flags += " --attention plain --kv k8v4"
    ok("inspect", "some/model", *flags.split())
    expected = {
        "precision": "fp32",
        "threads": 2,
        "memory_bytes": 4 * 2**30,
        "max_context": 99,
        "executor": "reference",
        "pins": ("a=fp16", "b=int8"),
        "kv_precision": "k8v4",
        "attention": "plain",
        "disable_passes": ("a", "b"),
        "exact": True,
        "progress": None,
    }
    assert loads["ref"] == "some/model"
    assert loads["options"] == expected
    twins = {"PRECISION": "fp32", "THREADS": "2", "MEMORY": "4GiB", "MAX_CONTEXT": "99", "EXECUTOR": "reference", "EXACT": "1"}
    twins["ATTENTION"], twins["KV"] = "plain", "k8v4"
    lists = {"TAUT_DISABLE_PASS": "a b", "TAUT_PIN": "a=fp16 b=int8"}
    result = run("inspect", "some/model", **lists, **{f"TAUT_{name}": value for name, value in twins.items()})
    assert result.exit_code == 0, result.output
    assert loads["options"] == expected
    run("inspect", "some/model", "--threads", "1", TAUT_THREADS="2")
    assert loads["options"]["threads"] == 1, "a flag wins over its variable"


def test_every_flag_of_env_exists() -> None:
    helps = "".join(run(command, "--help", COLUMNS="300").output for command in ("serve", "inspect"))
    for variable in env.VARIABLES:
        if variable.flag:
            assert variable.flag in helps
            assert variable.name in helps
    assert len({variable.name for variable in env.VARIABLES}) == len(env.VARIABLES)
    assert all(variable.name.startswith("TAUT_") and variable.doc.endswith(".") for variable in env.VARIABLES)


@pytest.mark.parametrize("text", ["", "x", "4QB", "-1", "4 i", "1e9", "GiB", "0", "0G"])
def test_what_is_no_size(loads: dict[str, Any], text: str) -> None:
    loads["model"] = Model()
    for result in (run("inspect", "m", f"--memory={text}"), run("inspect", "m", TAUT_MEMORY=text or " ")):
        assert result.exit_code == 2
        assert "4GiB" in said(result) and "TAUT_MEMORY" in said(result)


def test_sizes_by_flag_and_variable(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    for text, count in (("4G", 4 * 10**9), ("4GiB", 4 * 2**30), ("512M", 512 * 10**6), ("2000000K", 2 * 10**9)):
        for result in (run("inspect", "m", "--memory", text), run("inspect", "m", TAUT_MEMORY=text)):
            assert result.exit_code == 0, result.output
            assert loads["options"]["memory_bytes"] == count


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "m", "--threads", "x"], "'x' is given; a whole number of at least 1 is accepted"),
        (["inspect", "m", "--threads", "0"], "'0' is given; a whole number of at least 1 is accepted"),
        (["inspect", "m", "--max-context", "1.5"], "'1.5' is given; a whole number of at least 1 is accepted"),
        (
            ["inspect", "m", "--precision", "int4"],
            "'int4' is given; int8 or int8-g64 or int4-g128 or int4-g64 or int4-g32 or w8a16 or fp16 or bf16 or fp32 or auto is accepted",
        ),
        (["inspect", "m", "--executor", "gpu"], "'gpu' is given; native or reference is accepted"),
        (["inspect", "m", "--attention", "fast"], "'fast' is given; auto or flash or plain is accepted"),
        (["inspect", "m", "--disable-pass", ""], "'' is given; text of at least one character is accepted"),
        (["generate", "m", "x", "--temperature", "3"], "'3' is given; a number from 0 to 2 is accepted"),
        (["generate", "m", "x", "--temperature", "nan"], "'nan' is given; a number from 0 to 2 is accepted"),
        (["generate", "m", "x", "--top-k", "-1"], "'-1' is given; a whole number of at least 0 is accepted"),
        (["generate", "m", "x", "--seed", "1.5"], "'1.5' is given; a whole number is accepted"),
        (["generate", "m", "x", "--stop", ""], "'' is given; text of at least one character is accepted"),
        (["chat", "m", "--system", ""], "'' is given; text of at least one character is accepted"),
        (["serve", "m", "--port", "70000"], "'70000' is given; a whole number from 0 to 65535 is accepted"),
        (["serve", "m", "--drain-timeout", "inf"], "'inf' is given; a number of at least 0 is accepted"),
        (["bench", "latency", "m", "--reps", "0"], "'0' is given; a whole number of at least 1 is accepted"),
        (["bench", "encoder", "m", "--length", "x"], "'x' is given; a whole number of at least 1 is accepted"),
        (["limits", "--threads", "two"], "'two' is given; a whole number of at least 1 is accepted"),
    ],
)
def test_a_refused_value_says_what_is_accepted(loads: dict[str, Any], arguments: list[str], message: str) -> None:
    loads["model"] = AssertionError("must not be loaded")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in said(result)


@pytest.mark.parametrize("name", ["TAUT_EXACT", "TAUT_DEBUG"])
def test_a_switch_that_says_neither_yes_nor_no(
    loads: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    loads["model"] = AssertionError("must not be loaded")
    monkeypatch.setenv(name, "maybe")
    assert main(monkeypatch, "inspect", "m") == 2
    assert capsys.readouterr().err.startswith(f"error: {name} is 'maybe'; 1, true, yes, on")


@pytest.mark.parametrize(
    "command",
    [
        "",
        "serve",
        "chat",
        "generate",
        "embed",
        "inspect",
        "limits",
        "bench",
        "bench latency",
        "bench encoder",
        "bench ladder",
        "quantize",
        "plan",
        "verify",
        "eval",
        "export",
    ],
)
def test_help_reads_well(command: str) -> None:
    text = run(*command.split(), "--help", COLUMNS="300").output
    assert "<bool>" not in text and "range" not in text, "how the option library names types"
    about = text.split("Usage:")[1].splitlines()[2].strip()
    assert about.endswith(".") and 20 < len(about) < 125, "one line says what the command is for"
    for line in text.splitlines():
        if line.startswith("│ --"):
            documented = line.strip("│ ").partition("[env var")[0].rstrip()
            assert documented.endswith("."), line


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "m"],
        ["generate", "m", "x", "--temperature", "3"],
        ["generate", "m", "x", "--max-tokens", "0"],
        ["inspect", "m", "--precision", "int4"],
        ["inspect", "m", "--threads", "0"],
        ["serve", "m", "--port", "70000"],
        ["serve", "m", "--max-n", "129"],
        ["nonsense"],
        ["inspect", "m", "--nonsense"],
    ],
)
def test_bad_usage_ends_with_2(loads: dict[str, Any], arguments: list[str]) -> None:
    loads["model"] = Model()
    assert run(*arguments).exit_code == 2
