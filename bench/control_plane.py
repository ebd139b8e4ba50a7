"""How long /livez takes while the engine is busy: `taut serve` of a small model under continuous prefill, then decode.

    python bench/control_plane.py [--model smollm2-135m] [--seconds 20] [--json FILE]

The prober runs in a process of its own, beside the clients that keep the engine busy, and asks on one connection every 10 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PROBE_EVERY_S = 0.01
PROMPT_TOKENS = 512


def start(model: str) -> tuple[subprocess.Popen[str], int]:
    """A server on a free port, ready to answer."""
    command = [
        sys.executable,
        "-c",
        "from taut.cli.main import main; main()",
        "serve",
        model,
        "--port",
        "0",
        "--served-name",
        "m",
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if "http://" in line:
            return server, int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
    raise RuntimeError("the server ended before it listened")


def complete(port: int, max_tokens: int, prompt_tokens: int) -> None:
    """One completion of random token ids: never twice the same, so no prefix is reused."""
    ids = [random.randrange(100, 40_000) for _ in range(prompt_tokens)]
    body = json.dumps({"model": "m", "prompt": ids, "max_tokens": max_tokens, "ignore_eos": True})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {answer[:200]!r}")
    connection.close()


def load(port: int, stop: threading.Event, max_tokens: int, prompt_tokens: int, clients: int) -> Callable[[], int]:
    """Keeps `clients` requests in flight until `stop`; returns how many have ended when called."""
    done = []

    def client() -> None:
        while not stop.is_set():
            complete(port, max_tokens, prompt_tokens)
            done.append(1)

    for _ in range(clients):
        threading.Thread(target=client, daemon=True).start()
    return lambda: len(done)


PROBER = """
import http.client, json, sys, time
port, seconds, every = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
connection = http.client.HTTPConnection("127.0.0.1", port)
times, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    begun = time.perf_counter()
    connection.request("GET", "/livez")
    response = connection.getresponse()
    response.read()
    times.append(time.perf_counter() - begun)
    assert response.status == 200
    time.sleep(every)
print(json.dumps(times))
"""


def probe(port: int, seconds: float) -> dict[str, float]:
    """Milliseconds of /livez during `seconds`."""
    command = [sys.executable, "-c", PROBER, str(port), str(seconds), str(PROBE_EVERY_S)]
    times = sorted(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    at = {"p50_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99, "max_ms": 1.0}
    found = {name: round(1e3 * times[min(int(share * len(times)), len(times) - 1)], 2) for name, share in at.items()}
    return {"probes": len(times), **found}


def measure(port: int, seconds: float) -> dict[str, dict[str, float]]:
    results = {"idle": probe(port, min(seconds, 5))}
    for name, max_tokens, prompt_tokens, clients in (("prefill", 1, PROMPT_TOKENS, 2), ("decode", 256, 16, 4)):
        stop = threading.Event()
        ended = load(port, stop, max_tokens, prompt_tokens, clients)
        time.sleep(1)
        before = ended()
        results[name] = probe(port, seconds)
        tokens = (ended() - before) * (prompt_tokens if name == "prefill" else max_tokens)
        results[name]["tokens_per_s"] = round(tokens / seconds)
        stop.set()
        time.sleep(3)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    server, port = start(options.model)
    try:
        results = measure(port, options.seconds)
    finally:
        server.terminate()
        server.wait(60)
    text = json.dumps(results, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
