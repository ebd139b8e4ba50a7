"""`make demo`: a real server on this machine, one streamed answer, three embeddings, and what to type next.

Talks to the server as any client would, with nothing but the standard library.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

CHAT_MODEL = "smollm2-135m"
EMBED_MODEL = "minilm"
QUESTION = "In two or three sentences: why is the sky blue?"
SENTENCES = ["A cat sleeps on the warm windowsill.", "The kitten naps in the sun.", "Quarterly revenue grew by nine percent."]
START_TIMEOUT_S = 120.0
TAUT = [os.path.join(os.path.dirname(sys.executable), "taut")]


@dataclass(frozen=True)
class Server:
    port: int
    pid: int

    def get(self, path: str) -> http.client.HTTPResponse:
        return self._request("GET", path, None, timeout=5)

    def post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        response = self._request("POST", path, body, timeout=120)
        if response.status != 200:
            raise SystemExit(f"POST {path}: {response.status} {response.read().decode(errors='replace')}")
        return response

    def _request(self, method: str, path: str, body: dict[str, Any] | None, timeout: float) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        return connection.getresponse()

    @property
    def rss_gb(self) -> float:
        with open(f"/proc/{self.pid}/status", encoding="ascii") as status:
            return int(next(line for line in status if line.startswith("VmRSS")).split()[1]) * 1024 / 1e9


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serve(model: str) -> Iterator[Server]:
    """A server as a child process, ready to answer; stopped as an operator would stop it."""
    port = free_port()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        child = subprocess.Popen([*TAUT, "serve", model, "--port", str(port)], stderr=log)
        try:
            server = Server(port, child.pid)
            wait_until_ready(server, child)
            yield server
        except BaseException:
            log.seek(0)
            sys.stderr.write(log.read())
            raise
        finally:
            stop(child)


def stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    try:
        child.wait(timeout=15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def wait_until_ready(server: Server, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise SystemExit(f"the server ended with exit code {child.returncode} before it was ready")
        try:
            if server.get("/readyz").status == 200:
                return
        except OSError:
            pass  # not listening yet
        time.sleep(0.1)
    raise SystemExit(f"the server was not ready within {START_TIMEOUT_S:.0f} s")


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The JSON objects of a server-sent event stream, up to [DONE]."""
    for line in response:
        data = line.decode().strip().removeprefix("data: ")
        if data == "[DONE]":
            return
        if data.startswith("{"):
            yield json.loads(data)


def chat(server: Server, question: str) -> tuple[int, float, float]:
    """Print the answer as it comes; return (tokens, seconds to the first, seconds for the rest)."""
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": question}], "max_tokens": 120, "temperature": 0}
    start, first, tokens = time.perf_counter(), 0.0, 0
    for event in events(
        server.post("/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    ):
        if "error" in event:
            raise SystemExit(f"the server answered with an error: {event['error']}")
        for choice in event["choices"]:
            if text := choice["delta"].get("content"):
                first = first or time.perf_counter()
                print(text, end="", flush=True)
        if event.get("usage"):
            tokens = event["usage"]["completion_tokens"]
    end = time.perf_counter()
    print()
    if not first or tokens < 2:
        raise SystemExit("the server sent no answer")
    return tokens, first - start, end - first


def embed(server: Server, texts: list[str]) -> list[tuple[float, ...]]:
    """One vector per text, in the compact base64 form that the official clients ask for."""
    answer = json.load(server.post("/v1/embeddings", {"model": EMBED_MODEL, "input": texts, "encoding_format": "base64"}))
    raw = [base64.b64decode(item["embedding"]) for item in answer["data"]]
    return [struct.unpack(f"<{len(item) // 4}f", item) for item in raw]


def cosine(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    norm = (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / norm


def measured(model: str) -> dict[str, Any]:
    """`taut bench latency` of the same model, for the share of the machine's limit."""
    command = [
        *TAUT,
        "bench",
        "latency",
        model,
        "--precision",
        "int8",
        "--prompt",
        "128",
        "--gen",
        "32",
        "--batch",
        "1",
        "--json",
    ]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output)
    return result


def section(title: str) -> None:
    print(f"\n── {title} " + "─" * max(0, 76 - len(title)), flush=True)


def main() -> int:
    began = time.perf_counter()
    section(f"taut serve {CHAT_MODEL}")
    with serve(CHAT_MODEL) as server:
        section(QUESTION)
        tokens, first_s, rest_s = chat(server, QUESTION)
        rss_gb = server.rss_gb
    speed = (tokens - 1) / rest_s

    section(f"taut bench latency {CHAT_MODEL}")
    record = measured(CHAT_MODEL)
    limits, of_limit = record["limits"], record["of_limit"]
    hardware = f"{limits['isa']}, {limits['threads']} threads"
    print(f"answer   {speed:6.1f} tokens/s over HTTP, first token after {first_s * 1e3:.0f} ms, server memory {rss_gb:.2f} GB")
    print(f"prefill  {record['prefill_tokens_per_s']:6.1f} tokens/s, {of_limit['prefill']:.0%} of this machine's limit")
    print(f"decode   {1e3 / record['decode_ms']:6.1f} tokens/s, {of_limit['decode']:.0%} of this machine's limit")
    print(f"limits   {limits['int8_tops']:6.2f} int8 TOP/s, {limits['read_gb_s']:.1f} GB/s ({hardware})")

    section(f"taut serve {EMBED_MODEL}")
    with serve(EMBED_MODEL) as server:
        vectors = embed(server, SENTENCES)
    print()
    for i, text in enumerate(SENTENCES):
        print("  ".join(f"{cosine(vectors[i], other):5.2f}" for other in vectors), f"  {text}")

    section(f"done in {time.perf_counter() - began:.0f} s; next")
    taut = os.path.relpath(TAUT[0])
    print(f"  {taut} chat {CHAT_MODEL}                 talk to it in this terminal")
    print(f"  {taut} serve {CHAT_MODEL} --port 8000    an OpenAI-compatible server for your own client")
    print(f"  {taut} serve ./my-model                  your own Hugging Face folder or .gguf file")
    print(f"  {taut} bench latency {CHAT_MODEL}        how fast, and which share of this machine's limit")
    return 0


if __name__ == "__main__":
    sys.exit(main())
