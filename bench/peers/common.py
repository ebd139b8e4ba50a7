"""What every system is measured with: the same loads, clocks and counts. Runs in each peer's own interpreter, so numpy is all it needs.

A file in systems/ exports

    NEEDS       modules that it must find, by work
    VARIANTS    its settings, by work (decoder, encoder, sentences)
    prepare     (spec) -> None: make the file that the variant runs from, unless it is there
    measure     (spec) -> result: load it and time it with one of the functions below

`spec` is what run.py writes: work, variant, model (a Hugging Face folder), cache (where converted files go), sizes, threads, texts.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Spec = Mapping[str, Any]
Result = dict[str, Any]
Embed = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (ids, mask), (texts, longest) each -> (texts, dim)
BURST_S = 1.0
SORTED_BATCH = 8
MAX_SENTENCE_TOKENS = 256


def rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Loading:
    """Seconds and memory of loading a model: made after the imports, before the model."""

    def __init__(self) -> None:
        self.before_bytes, self.start = rss_bytes(), time.perf_counter()

    def done(self, version: str) -> Result:
        return {"version": version, "load_s": time.perf_counter() - self.start, "rss_before_bytes": self.before_bytes}


def converted(spec: Spec, name: str) -> Path:
    """Where a system keeps its own file of the model; the folder is made."""
    folder = Path(spec["cache"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def decoder(spec: Spec, generate: Callable[[np.ndarray, int], tuple[float, list[float]]]) -> Result:
    """`generate(prompts (batch, prompt), gen)` gives seconds of the prefill and of each step. Medians over the repetitions."""
    rng = np.random.default_rng(0)

    def prompts() -> np.ndarray:
        return rng.integers(100, spec["vocab_size"], (spec["batch"], spec["prompt"]))

    generate(prompts()[:1], 2)  # warm-up: one sequence is enough, a whole batch of a large model takes minutes
    timed = [generate(prompts(), spec["gen"]) for _ in range(spec["reps"])]
    return {
        "prefill_tokens_per_s": spec["batch"] * spec["prompt"] / statistics.median(prefill for prefill, _ in timed),
        "decode_ms": 1e3 * statistics.median(statistics.median(steps) for _, steps in timed),
        "rss_bytes": rss_bytes(),
        "repetitions": [{"prefill_s": prefill, "decode_s": statistics.median(steps)} for prefill, steps in timed],
    }


def encoder(spec: Spec, embed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Result:
    """`embed(ids, mask)`, (batch, length) each, gives one vector per sequence."""
    ids = np.random.default_rng(0).integers(10, spec["vocab_size"], (spec["batch"], spec["length"]))
    mask = np.ones_like(ids)
    embed(ids, mask), embed(ids, mask)
    bursts = [burst(lambda: embed(ids, mask)) for _ in range(spec["reps"])]
    times = [seconds for one in bursts for seconds in one]
    return {
        "requests_per_s": spec["batch"] / statistics.median(times),
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "batches": len(times),
        "rss_bytes": rss_bytes(),
        "repetitions": [{"batches_s": one} for one in bursts],
    }


def burst(once: Callable[[], Any], least: int = 3) -> list[float]:
    """Seconds of each call, for about BURST_S."""
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < least or time.perf_counter() - begun < BURST_S:
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    return times


def sentences(spec: Spec, embed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Result:
    """Texts to vectors, tokenization included: each case at the best of one padded batch, one by one, and sorted batches of 8."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(spec["model"]) / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_SENTENCE_TOKENS)
    tokenizer.no_padding()
    cases = {}
    for name, texts in spec["cases"].items():
        ways = {
            "one batch": [texts],
            "one by one": [[text] for text in texts],
            f"sorted batches of {SORTED_BATCH}": by_length(texts),
        }
        seconds = {}
        for way, batches in ways.items() if len(texts) > 1 else [("one by one", [texts])]:
            times = burst(functools.partial(_embed_all, embed, tokenizer, batches))
            seconds[way] = statistics.median(times[1:])
        best = min(seconds, key=lambda way: seconds[way])
        cases[name] = {"sentences_per_s": len(texts) / seconds[best], "best_way": best}
    return {"cases": cases, "rss_bytes": rss_bytes()}


def _embed_all(embed: Embed, tokenizer: Any, batches: Sequence[Sequence[str]]) -> None:
    for batch in batches:
        embed(*padded(tokenizer.encode_batch(batch)))


def by_length(texts: Sequence[str]) -> list[list[str]]:
    ordered = sorted(texts, key=len)
    return [ordered[i : i + SORTED_BATCH] for i in range(0, len(ordered), SORTED_BATCH)]


def padded(encodings: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """(ids, mask), (texts, longest) each."""
    longest = max(len(one.ids) for one in encodings)
    ids, mask = np.zeros((len(encodings), longest), np.int64), np.zeros((len(encodings), longest), np.int64)
    for row, one in enumerate(encodings):
        ids[row, : len(one.ids)] = one.ids
        mask[row, : len(one.ids)] = 1
    return ids, mask


def pooled(spec: Spec, hidden: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Last hidden states (batch, length, dim) to unit vectors (batch, dim), as the model's folder says."""
    if spec["pooling"] == "cls":
        vectors = hidden[:, 0]
    else:
        weights = mask[..., None].astype(np.float32)
        vectors = (hidden * weights).sum(1) / weights.sum(1)
    unit: np.ndarray = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return unit


def timed(spec: Spec, embed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Result:
    """The encoder's work or the sentences', and the quality texts' vectors where they are asked for."""
    result = (encoder if spec["work"] == "encoder" else sentences)(spec, embed)
    answer(spec, lambda ids: embed(ids[None], np.ones((1, len(ids)), np.int64))[0])
    return result


def answer(spec: Spec, respond: Callable[[np.ndarray], np.ndarray]) -> None:
    """Writes what the system answers to each quality text (token ids): a vector, or logits (tokens, vocab)."""
    if spec.get("answers"):
        answers = [respond(np.asarray(ids, np.int64)) for ids in spec["quality_ids"]]
        arrays: dict[str, Any] = {f"answer{i}": np.asarray(one, np.float32) for i, one in enumerate(answers)}
        np.savez(spec["answers"], **arrays)
