"""The commands over a scripted model: what they print, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cli.support import Model, ok, run
from server.fakes import FakeLoop, text_of
from taut.cli import chat as chat_command
from taut.cli import main as main_module
from taut.cli.options import ModelOptions, SamplingOptions
from taut.errors import RequestError, UsageError
from taut.scheduler.request import GenerateRequest

TEXT = "Hello, world"


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
