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
from taut.cli.options import ModelOptions, SamplingOptions, parse_bytes
from taut.errors import MemoryBudgetError, ModelNotFoundError, RequestError
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

    def explain(self) -> str:
        return "passes\n  fuse_qkv"

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
    with pytest.raises(RequestError, match="300 tokens; at most 255"):
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


def test_inspect(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    assert json.loads(ok("inspect", "m", "--json")) == decoder.describe()
    text = ok("inspect", "m", "--explain")
    assert "precision" in text
    assert "fuse_qkv" in text
    assert "fuse_qkv" not in ok("inspect", "m")


@pytest.mark.parametrize(("command", "kind"), [("chat", "encoder"), ("generate", "encoder"), ("embed", "decoder")])
def test_the_wrong_kind_of_model(loads: dict[str, Any], command: str, kind: Any) -> None:
    loads["model"] = Model(kind=kind)
    result = run(command, "m", *([] if command == "chat" else ["x"]), stdin="x")
    assert result.exception is not None
    assert "it can `taut" in str(result.exception)


def test_model_options_and_their_twins(loads: dict[str, Any], decoder: Model) -> None:
    loads["model"] = decoder
    flags = "--precision fp32 --threads 2 --memory 4GiB --max-context 99 --executor reference --disable-pass a --disable-pass b --exact"
    ok("inspect", "some/model", *flags.split())
    expected = {
        "precision": "fp32",
        "threads": 2,
        "memory_bytes": 4 * 2**30,
        "max_context": 99,
        "executor": "reference",
        "disable_passes": ("a", "b"),
        "exact": True,
        "progress": None,
    }
    assert loads["ref"] == "some/model"
    assert loads["options"] == expected
    twins = {"PRECISION": "fp32", "THREADS": "2", "MEMORY": "4GiB", "MAX_CONTEXT": "99", "EXECUTOR": "reference", "EXACT": "1"}
    result = run("inspect", "some/model", TAUT_DISABLE_PASS="a b", **{f"TAUT_{name}": value for name, value in twins.items()})
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


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000", 1000), ("4GiB", 4 * 2**30), ("500MB", 500 * 10**6), ("1.5g", 1_500_000_000), ("2 KiB", 2048), ("7B", 7)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "x", "4QB", "-1", "4 i", "1e9", "GiB"])
def test_what_is_no_size(loads: dict[str, Any], text: str) -> None:
    loads["model"] = Model()
    assert run("inspect", "m", f"--memory={text}").exit_code == 2


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
    loads["model"] = ModelNotFoundError("no model 'm'")
    monkeypatch.setenv("TAUT_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["taut", "inspect", "m"])
    with pytest.raises(ModelNotFoundError):
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
