"""What the documents show is run: Python blocks, `$ taut …` lines, the client against a real server; links and make targets exist."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "README.zh.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/benchmarks.md",
    "docs/dependencies.md",
    "docs/log.md",
    "docs/quality.md",
)
TAUT = Path(sys.executable).with_name("taut")
SERVER_MARK = "<!-- needs a server -->"


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    needs_server: bool


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = re.finditer(rf"({re.escape(SERVER_MARK)}\n)?^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(match[2], match[3], match[1] is not None) for match in found]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(port: int) -> Iterator[None]:
    child = subprocess.Popen(
        [TAUT, "serve", "smollm2-135m", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                    break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.fail(f"the server was not ready in time (exit code {child.poll()})")
        yield
    finally:
        child.terminate()
        assert child.wait(timeout=30) == 0


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "README.zh.md"])
def test_python_blocks(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    scope: dict[str, object] = {}
    texts = [block.text for block in blocks(document) if block.language == "python" and not block.needs_server]
    assert texts
    for text in texts:
        exec(compile(text, document, "exec"), scope)
        assert capsys.readouterr().out.strip(), f"a block printed nothing:\n{text}"


@pytest.mark.native
@pytest.mark.slow
def test_client_block(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openai")
    (block,) = (block for block in blocks("README.md") if block.needs_server)
    port = free_port()
    assert "127.0.0.1:8000" in block.text
    with server(port):
        exec(compile(block.text.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip()


def console_commands() -> dict[str, str]:
    """Each shown command and the output shown below it."""
    texts = [block.text for block in blocks("README.md") if block.language == "console"]
    found = re.finditer(r"^\$ (taut .*)\n((?:(?!\$ ).*\n)*)", "".join(texts), re.MULTILINE)
    return {match[1]: match[2] for match in found}


@pytest.mark.native
@pytest.mark.slow
@pytest.mark.parametrize(("command", "shown"), console_commands().items(), ids=list(console_commands()))
def test_console_commands(command: str, shown: str) -> None:
    arguments = re.findall(r'"([^"]*)"|(\S+)', command)
    words = [quoted or plain for quoted, plain in arguments]
    done = subprocess.run([TAUT, *words[1:]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "generate" in words:  # int8 gives the same text on every instruction set
        assert done.stdout.strip() == shown.strip()


def test_the_tour_has_commands() -> None:
    assert len(console_commands()) >= 4


@pytest.mark.native
def test_shown_subcommands_exist() -> None:
    shown = {
        match[1]
        for name in DOCUMENTS
        for match in re.finditer(r"(?:^|`|\$ )taut ([a-z]+)", (ROOT / name).read_text(), re.MULTILINE)
    }
    help_text = subprocess.run([TAUT, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert {"serve", "chat", "embed"} <= shown
    assert not {name for name in shown if not re.search(rf"\b{name}\b", help_text)}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_and_targets_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert not [link for link in links if not (ROOT / document).parent.joinpath(link).exists()]
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = {match[1] for match in re.finditer(r"(?:^|`)make ([a-z]+)", text, re.MULTILINE)}
    assert not shown - targets
