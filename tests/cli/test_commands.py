"""The commands over a scripted model: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import taut
from server.fakes import FakeLoop, FakeModel, text_of
from taut import env
from taut.cli import chat as chat_command
from taut.cli import main as main_module
from taut.cli.options import ModelOptions, SamplingOptions
from taut.errors import MemoryBudgetError, ModelNotFoundError, RequestError, UsageError
from taut.scheduler.request import GenerateRequest

TEXT = "Hello, world"


class Model(FakeModel):
    """The fake of the server's tests, with what only the command line asks of a model."""

    closed = False

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        return self.tokenizer.encode("|".join(message["content"] for message in messages))

    def embed(self, texts: list[str], *, truncate: bool = False) -> Any:
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    def summary(self) -> str:
        return "weights 0.00 GB · int8"

    def explain(self, *, every_layer: bool = False) -> str:
        return "passes\n  fuse_qkv" + "\n  every layer" * every_layer

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def decoder() -> Model:
    return Model()


@pytest.fixture
def encoder() -> Model:
    return Model(kind="encoder")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for taut.load: gives `loads["model"]` (or raises it) and keeps the options."""
    seen: dict[str, Any] = {}

    def load(ref: str, **options: Any) -> Any:
        seen.update(ref=ref, options=options)
        if isinstance(seen["model"], BaseException):
            raise seen["model"]
        return seen["model"]

    monkeypatch.setattr(taut, "load", load)
    for variable in env.VARIABLES:
        monkeypatch.delenv(variable.name, raising=False)
    return seen


def run(*arguments: str, stdin: str = "", **variables: str) -> Result:
    return CliRunner().invoke(main_module.app, list(arguments), input=stdin, env=variables, catch_exceptions=True)


def ok(*arguments: str, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    assert ok("generate", "m", "Once") == TEXT + "\n"
    assert text_of(decoder.loop.seen[0]) == "Once"
    assert ok("generate", "m", "-", stdin="from stdin") == TEXT + "\n"
    assert text_of(decoder.loop.seen[1]) == "from stdin"
    answer = json.loads(ok("generate", "m", "x", "--json", "--max-tokens", "2"))
    assert (answer["text"], answer["finish_reason"]) == ("Hello", "length")
    assert answer["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 3}
    assert answer["tokens_per_s"] > 0


def test_sampling_options(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    flags = "--temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 5 --stop a --stop b"
    ok("generate", "m", "x", *flags.split())
    request = decoder.loop.seen[0]
    assert isinstance(request, GenerateRequest)
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p, sampling.seed) == (0.5, 3, 0.9, 0.1, 5)
    assert request.stop == ("a", "b")
    assert request.max_tokens == decoder.context_len - 1
    with pytest.raises(RequestError, match="300 tokens; at most 255 and an answer fit; shorten"):
        SamplingOptions().request(decoder, "r", [1] * 300)  # type: ignore[arg-type]


def test_chat_from_a_pipe_is_one_turn(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    assert ok("chat", "m", "--system", "S", stdin=" Hi there \n") == TEXT + "\n"
    assert text_of(decoder.loop.seen[0]) == "S|Hi there"
    assert json.loads(ok("chat", "m", "--json", stdin="x"))["text"] == TEXT


def converse(monkeypatch: pytest.MonkeyPatch, model: Model, *lines: str | BaseException) -> None:
    """An interactive session in which the user types `lines`, then Ctrl-D."""
    typed = iter([*lines, EOFError()])

    def read(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr("builtins.input", read)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    chat_command.command("m", ModelOptions(), SamplingOptions())


def test_a_conversation(loads: dict[str, Any], decoder: Model, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    loads["model"] = decoder
    converse(monkeypatch, decoder, "one", "", "two", "/reset", "/help", "three", "nan", "four")
    prompts = [text_of(request) for request in decoder.loop.seen]
    assert prompts == ["one", f"one|{TEXT}|two", "three", f"three|{TEXT}|nan", f"three|{TEXT}|four"], (
        "a failed turn is forgotten"
    )
    captured = capsys.readouterr()
    assert captured.out.count(TEXT) == 4
    assert "tokens/s" in captured.err
    assert "the logits are not finite (/reset starts over)" in captured.err
    assert "/exit" in captured.err


def test_leaving_a_conversation(loads: dict[str, Any], decoder: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loads["model"] = decoder
    converse(monkeypatch, decoder, "/exit", "never")
    converse(monkeypatch, decoder, KeyboardInterrupt(), "never")
    assert not decoder.loop.seen


def test_ctrl_c_stops_an_answer_only(loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Interrupted(FakeLoop):
        def step(self) -> Any:
            if self.steps == 2:
                self.steps += 1
                raise KeyboardInterrupt
            return super().step()

    model = Model(Interrupted())
    loads["model"] = model
    converse(monkeypatch, model, "one", "two")
    assert [name for name, _ in model.loop.cancelled] == ["chat-1"]
    assert not model.loop.has_work
    assert text_of(model.loop.seen[1]) == "two", "the stopped turn is forgotten"
    assert "stopped" in capsys.readouterr().err


def test_embed(loads: dict[str, Any], encoder: Model) -> None:
    loads["model"] = encoder
    lines = [json.loads(line) for line in ok("embed", "m", "a", "bcd").splitlines()]
    assert lines == [{"text": "a", "embedding": [1.0, 1.0]}, {"text": "bcd", "embedding": [3.0, 1.0]}]
    lines = [json.loads(line) for line in ok("embed", "m", "-", stdin="a\n\nbcd\n").splitlines()]
    assert [line["text"] for line in lines] == ["a", "bcd"]
    matrix = json.loads(ok("embed", "m", "a", "bcd", "--similarity", "--json"))["similarity"]
    assert matrix[0][1] == pytest.approx(4 / np.sqrt(20), abs=1e-6)
    table = ok("embed", "m", "a [bold]", "bcd", "--similarity")
    assert "1 a [bold]" in table
    assert "1.000" in table


def test_embed_a_file(loads: dict[str, Any], encoder: Model, tmp_path: Path) -> None:
    loads["model"] = encoder
    file = tmp_path / "my texts"
    file.write_bytes("\ufeffa\r\n\r\nbcd\u2028e\n".encode())

    def texts(*arguments: str) -> list[str]:
        return [json.loads(line)["text"] for line in ok("embed", "m", *arguments).rstrip("\n").split("\n")]

    assert texts("--file", str(file)) == ["a", "bcd\u2028e"]
    assert texts(str(file)) == [str(file)]
    assert f"to embed its lines: taut embed m --file '{file}'" in run("embed", "m", str(file)).stderr
    assert f"taut generate m - < '{file}'" in run("generate", "m", str(file)).stderr
    for name in ("nowhere", "x" * 5000):
        assert run("embed", "m", name).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no text is given; give texts"),
        ([""], "an empty text is given"),
        (["a", ""], "an empty text is given"),
        (["a", "-"], "stands alone"),
        (["a", "--file", "f"], "both given"),
        (["--file", "/nowhere/at/all"], "cannot read '/nowhere/at/all': No such file"),
        (["--file", "/"], "cannot read '/': Is a directory"),
        (["--file", "/dev/null"], "/dev/null holds no text"),
        (["-"], "stdin holds no text"),
    ],
)
def test_texts_that_are_refused(loads: dict[str, Any], arguments: list[str], message: str) -> None:
    loads["model"] = AssertionError("must not be loaded")
    error = run("embed", "m", *arguments).exception
    assert isinstance(error, UsageError)
    assert message in str(error)


def test_inspect(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    assert json.loads(ok("inspect", "m", "--json")) == decoder.describe()
    text = ok("inspect", "m", "--explain")
    assert "precision" in text
    assert "fuse_qkv" in text
    assert "every layer" not in text
    assert "every layer" in ok("inspect", "m", "--explain", "--every-layer")
    assert "fuse_qkv" not in ok("inspect", "m")
    assert "give both" in str(run("inspect", "m", "--every-layer").exception)


@pytest.mark.parametrize(("command", "kind"), [("chat", "encoder"), ("generate", "encoder"), ("embed", "decoder")])
def test_the_wrong_kind_of_model(loads: dict[str, Any], command: str, kind: Any) -> None:
    loads["model"] = Model(kind=kind)
    result = run(command, "m", *([] if command == "chat" else ["x"]), stdin="x")
    assert result.exception is not None
    assert "it can `taut" in str(result.exception)


def test_model_options_and_their_twins(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    flags = "--precision fp32 --threads 2 --memory 4GiB --max-context 99 --executor reference --disable-pass a --disable-pass b --exact"
    flags += " --pin a=fp16 --pin b=int8"
    flags += " --attention plain"
    ok("inspect", "some/model", *flags.split())
    expected = {
        "precision": "fp32",
        "threads": 2,
        "memory_bytes": 4 * 2**30,
        "max_context": 99,
        "executor": "reference",
        "pins": ("a=fp16", "b=int8"),
        "attention": "plain",
        "disable_passes": ("a", "b"),
        "exact": True,
        "progress": None,
    }
    assert loads["ref"] == "some/model"
    assert loads["options"] == expected
    twins = {"PRECISION": "fp32", "THREADS": "2", "MEMORY": "4GiB", "MAX_CONTEXT": "99", "EXECUTOR": "reference", "EXACT": "1"}
    twins["ATTENTION"] = "plain"
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


def said(result: Result) -> str:
    """A refusal without the frame that is drawn around it."""
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "m", "--threads", "x"], "'x' is given; a whole number of at least 1 is accepted"),
        (["inspect", "m", "--threads", "0"], "'0' is given; a whole number of at least 1 is accepted"),
        (["inspect", "m", "--max-context", "1.5"], "'1.5' is given; a whole number of at least 1 is accepted"),
        (
            ["inspect", "m", "--precision", "int4"],
            "'int4' is given; int8 or int4-g128 or int4-g64 or int4-g32 or fp16 or bf16 or fp32 is accepted",
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
    ["", "serve", "chat", "generate", "embed", "inspect", "limits", "bench", "bench latency", "bench encoder", "bench ladder"],
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


def test_stdin_that_is_no_text(loads: dict[str, Any]) -> None:
    loads["model"] = AssertionError("must not be loaded")
    for arguments in (["generate", "m", "-"], ["embed", "m", "-"], ["chat", "m"]):
        result = CliRunner().invoke(main_module.app, arguments, input=b"caf\xe9")
        assert isinstance(result.exception, UsageError)
        assert "stdin is not UTF-8 text: byte 4 is 0xe9; convert it" in str(result.exception)
    for command in ("generate", "embed"):
        assert "not UTF-8" in str(run(command, "m", "caf\udce9").exception)


def test_an_empty_question_is_no_question(loads: dict[str, Any]) -> None:
    loads["model"] = AssertionError("must not be loaded")
    for stdin in ("", " \n"):
        assert "stdin is empty" in str(run("chat", "m", stdin=stdin).exception)


def test_one_token_is_not_one_tokens(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    note = run("generate", "m", "x", "--max-tokens", "1").stderr
    assert note.startswith("1 token · first after ") and "prompt 1 token, " in note


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


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["taut", *arguments])
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    return int(ended.value.code or 0)


def test_exit_codes(loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for error, code in (
        (ModelNotFoundError("no model 'm'"), 3),
        (MemoryBudgetError("1 GB is missing"), 5),
        (RequestError("too long"), 2),
        (MemoryError(), 5),
    ):
        loads["model"] = error
        assert main(monkeypatch, "inspect", "m") == code
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ")
        assert captured.err.count("\n") == 1, "one message, no traceback"
        assert captured.out == ""
    loads["model"] = KeyboardInterrupt()
    assert main(monkeypatch, "inspect", "m") == 130


def test_a_taken_port_ends_with_4_before_the_model_is_loaded(
    loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    loads["model"] = AssertionError("must not be loaded")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(monkeypatch, "serve", "m", "--port", str(port)) == 4
    assert f"port {port}" in capsys.readouterr().err


def test_key_files(loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    loads["model"] = AssertionError("must not be loaded")
    empty = tmp_path / "keys"
    empty.write_text("# none\n")
    for path in (empty, tmp_path / "absent"):
        assert main(monkeypatch, "serve", "m", "--port", "0", "--api-key-file", str(path)) == 2
        assert capsys.readouterr().err.startswith("error: ")


def test_debug_shows_the_traceback(loads: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAUT_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["taut", "inspect", "m"])
    for error in (ModelNotFoundError("no model 'm'"), UsageError("no such pass")):
        loads["model"] = error
        with pytest.raises(type(error)):
            main_module.main()


def fresh(code: str) -> str:
    path = ":".join(entry for entry in sys.path if entry)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": path}
    ).stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['taut', 'serve', '--help']\n"
        "from taut.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    )
    loaded = set(fresh(code).rpartition("LOADED")[2].split())
    assert "typer" in loaded
    assert not loaded & {"numpy", "starlette", "uvicorn", "tokenizers", "gguf", "jinja2", "prometheus_client"}


def test_version() -> None:
    assert f"taut {taut.__version__}" in ok("--version")
