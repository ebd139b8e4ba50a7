"""A scripted model for the command line, and how a command is run over it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from server.fakes import FakeModel
from taut.cli import main as main_module


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


def run(*arguments: str, stdin: str = "", **variables: str) -> Result:
    return CliRunner().invoke(main_module.app, list(arguments), input=stdin, env=variables, catch_exceptions=True)


def ok(*arguments: str, stdin: str = "") -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def said(result: Result) -> str:
    """A refusal without the frame that is drawn around it."""
    return " ".join(result.output.replace("│", " ").split())


def main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["taut", *arguments])
    with pytest.raises(SystemExit) as ended:
        main_module.main()
    return int(ended.value.code or 0)
