"""What a busy Python thread in the engine's own process costs decoding, beside the same work in another process and beside nothing.

    python bench/busy_client.py [--model smollm2-135m] [--tokens 64] [--rounds 9] [--json FILE]

One compute thread, so that the client has a core of its own where the machine has two. The client parses and writes streamed chunks without
a pause. The interpreter's share is the thread's figure over the process's; both together also pay for the second core's shared caches
and clock, which "over nothing" shows.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import taut

CHUNK = 'data: {"id":"cmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}'
PROMPT_TOKENS = 16


def client(is_over: Callable[[], bool]) -> None:
    """Reads and writes chunks of a stream until it is over."""
    while not is_over():
        for _ in range(20):
            chunk = json.loads(CHUNK.removeprefix("data: "))
            chunk["choices"][0]["delta"]["content"] += "."
            json.dumps(chunk)


@contextmanager
def nothing() -> Iterator[None]:
    yield


@contextmanager
def thread() -> Iterator[None]:
    over = threading.Event()
    busy = threading.Thread(target=client, args=(over.is_set,), daemon=True)
    busy.start()
    try:
        yield
    finally:
        over.set()
        busy.join()


@contextmanager
def process() -> Iterator[None]:
    context: Any = multiprocessing.get_context("spawn")
    over = context.Event()
    busy = context.Process(target=client, args=(over.is_set,), daemon=True)
    busy.start()
    time.sleep(1.0)  # its interpreter starts
    try:
        yield
    finally:
        over.set()
        busy.join()


BESIDE = {"nothing": nothing, "process": process, "thread": thread}


def token_ms(model: taut.Model, tokens: int) -> float:
    """Milliseconds of a decoded token."""
    prompt = list(range(100, 100 + PROMPT_TOKENS))
    begun = time.perf_counter()
    model.generate(prompt, max_tokens=1)
    first = time.perf_counter()
    model.generate(prompt, max_tokens=tokens + 1)
    return 1e3 * (time.perf_counter() - first - (first - begun)) / tokens


def measure(model: taut.Model, tokens: int, rounds: int) -> dict[str, Any]:
    token_ms(model, tokens)
    found: dict[str, list[float]] = {name: [] for name in BESIDE}
    for number in range(rounds):
        names = list(BESIDE)[number % 3 :] + list(BESIDE)[: number % 3]  # no case always comes first
        for name in names:
            with BESIDE[name]():
                found[name].append(token_ms(model, tokens))
    over = {
        base: statistics.median(t / b for t, b in zip(found["thread"], found[base], strict=True))
        for base in ("process", "nothing")
    }
    medians = {f"{name}_ms": round(statistics.median(times), 2) for name, times in found.items()}
    return {
        **medians,
        "thread_over_process": round(over["process"], 3),
        "thread_over_nothing": round(over["nothing"], 3),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(taut.load(options.model, threads=1, max_context=512), options.tokens, options.rounds)
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
