"""How a command ends: exit codes, one message, no traceback; and what it loads to get there."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import taut
from cli.support import main, ok
from taut.cli import main as main_module
from taut.errors import MemoryBudgetError, ModelNotFoundError, RequestError, UsageError


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
