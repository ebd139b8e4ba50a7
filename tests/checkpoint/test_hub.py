"""Hub ids, against an HTTP server on the loopback address that speaks the hub's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from hostile.raw import LLAMA, pack
from taut.checkpoint import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": json.dumps(LLAMA).encode(),
    "model.safetensors": pack({"model.embed_tokens.weight": np.arange(64 * 32).reshape(64, 32)}),
    "vocab.txt": b"[UNK]\n[CLS]\n[SEP]\nhello\n",
    "pytorch_model.bin": b"\x80\x02.",
    "modeling_custom.py": b"raise SystemExit('ran')",
    "onnx/model.json": b"{}",
}


class Hub(ThreadingHTTPServer):
    """Serves FILES as the repository acme/tiny; `asked` lists the paths that were requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.server.asked.append(self.path)
        name = self.path.partition(f"/acme/tiny/resolve/{COMMIT}/")[2]
        if self.path.startswith("/api/models/acme/tiny/revision/main") or self.path == "/api/models/acme/tiny":
            siblings = [{"rfilename": file, "size": len(data)} for file, data in FILES.items()]
            self._send(200, json.dumps({"id": "acme/tiny", "sha": COMMIT, "siblings": siblings}).encode())
        elif self.path.startswith(f"/api/models/acme/tiny/tree/{COMMIT}"):
            tree = [{"type": "file", "path": file, "size": len(data), "oid": "0" * 40} for file, data in FILES.items()]
            self._send(200, json.dumps(tree).encode())
        elif name in FILES:
            etag = hashlib.sha1(FILES[name]).hexdigest()
            self._send(200, FILES[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        else:
            self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Hub]:
    with Hub() as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


SCRIPT = """
import json, sys
from taut import checkpoint
from taut.errors import TautError
try:
    with checkpoint.open(sys.argv[1]) as opened:
        print(json.dumps({"name": opened.name, "last": float(opened.read("model.embed_tokens.weight")[-1, -1]),
                          "tokens": opened.tokenizer.encode("hello")}))
except TautError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
"""


def open_by_id(server_url: str, home: Path, ref: str = "acme/tiny", **environment: str) -> dict[str, object]:
    """Opens `ref` in a process of its own, because the hub library reads its environment when it is imported."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    paths = os.pathsep.join(path for path in sys.path if path)
    full = {
        **kept,
        "PYTHONPATH": paths,
        "HF_ENDPOINT": server_url,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        **environment,
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, ref], env=full, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, object] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_fetches_only_weights_and_text_and_works_offline_afterwards(server: Hub, tmp_path: Path) -> None:
    first = open_by_id(server.url, tmp_path)
    assert first == {"name": "tiny", "last": 64 * 32 - 1.0, "tokens": [1, 3, 2]}
    fetched = {path.rpartition(f"{COMMIT}/")[2] for path in server.asked if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors", "vocab.txt"}

    server.asked.clear()
    assert open_by_id(server.url, tmp_path, HF_HUB_OFFLINE="1") == first
    assert server.asked == []


@pytest.mark.slow
def test_unknown_ids_and_a_dead_hub_are_told_apart(server: Hub, tmp_path: Path) -> None:
    unknown = open_by_id(server.url, tmp_path, "acme/other")
    assert unknown["error"] == "ModelNotFoundError"
    assert "no model 'acme/other' on the hub" in str(unknown["message"])

    offline = open_by_id(server.url, tmp_path, HF_HUB_OFFLINE="1")
    assert offline["error"] == "ModelNotFoundError"
    assert "neither a folder here nor in the hub's cache" in str(offline["message"])


@pytest.mark.parametrize("ref", ["acme/tiny", "a/b", "HuggingFaceTB/SmolLM2-1.7B-Instruct"])
def test_is_a_hub_id(ref: str) -> None:
    assert hub.is_hub_id(ref)


@pytest.mark.parametrize("ref", ["tiny", "a/b/c", "../b", "a/..", "/a/b", "a/", "a b/c", "a/b\n", "-a/b"])
def test_is_no_hub_id(ref: str) -> None:
    assert not hub.is_hub_id(ref)
