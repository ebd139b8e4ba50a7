"""One rung, measured in a process that does nothing else: {"task": …} in, samples out. Knows no other rung.

Tasks: `measure` times the model with and without what the rung switches; `recompute` is a decoder that keeps no cache; `reference`
writes what fp32 answers to a few texts, against which the other rungs' answers are judged. How a model is loaded is handed in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.bench import encoder, latency, limits
from taut.bench.probe import Subject, rss_bytes, subject
from taut.engine.batch import Part, concatenate
from taut.engine.kv_cache import blocks_for
from taut.engine.sampler import RowChoice
from taut.quality import kl
from taut.quality.texts import pydoc_windows, sentences

Spec = Mapping[str, Any]
Load = Callable[..., Any]  # api.load
_PASSES = 2  # full passes of a sequence at its shortest and its longest, without a cache


def run(spec: Spec, load: Load) -> dict[str, Any]:
    """Do the task of `spec` (see climb.py, which writes it). Raises TautError for what the rung's options do not allow."""
    tasks: dict[str, Callable[[Spec, Any], dict[str, Any]]] = {
        "measure": _measure,
        "recompute": _recompute,
        "reference": _reference,
    }
    before, _ = rss_bytes()
    start = time.perf_counter()
    model = load(spec["model"], **spec["options"])
    load_s = time.perf_counter() - start
    result = tasks[spec["task"]](spec, model)
    return {**result, "load_s": load_s, "rss_before_bytes": before}


def _measure(spec: Spec, model: Any) -> dict[str, Any]:
    seen, load = subject(model), spec["load"]
    gauge = lambda: limits.measure(spec["options"]["threads"])  # noqa: E731
    if model.kind == "encoder":
        result = encoder.run(seen, encoder.Load(**load), gauge)
    else:
        result = latency.run(seen, latency.Load(**load), gauge)
    return {**result, "rss_bytes": rss_bytes()[0], "quality": _quality(spec, model)}


def _recompute(spec: Spec, model: Any) -> dict[str, Any]:
    """A decoder without a cache runs all earlier tokens again for each new one. Whole generations would take hours: passes of the shortest
    and of the longest sequence are timed, and a step is estimated as their mean times the batch."""
    load, seen = spec["load"], subject(model)
    _full_pass(seen, min(load["prompt"], seen.step_tokens))  # warm-up
    shortest = [_full_pass(seen, load["prompt"]) for _ in range(_PASSES)]
    longest = [_full_pass(seen, load["prompt"] + load["gen"] - 1) for _ in range(_PASSES)]
    step_s = load["batch"] * (min(shortest) + min(longest)) / 2
    return {
        "estimated_from_passes": 2 * _PASSES,
        "repetitions": [{"prefill_s": load["batch"] * min(shortest), "steps_s": [step_s] * load["gen"]}],
        "rss_bytes": rss_bytes()[0],
        "quality": _quality(spec, model),
    }


def _full_pass(seen: Subject, length: int) -> float:
    """Seconds of one sequence from its first token to the choice of the next one."""
    assert seen.pool is not None
    rng = np.random.default_rng(0)
    ids = rng.integers(0, seen.vocab_size, length).tolist()
    table = seen.pool.take(blocks_for(length))
    try:
        start = time.perf_counter()
        for begin in range(0, length, seen.step_tokens):
            chunk = ids[begin : begin + seen.step_tokens]
            batch = concatenate([Part(chunk, begin, table, wants_row=begin + len(chunk) == length)])
            seen.engine.run(batch, [RowChoice()] * batch.num_rows)
        return time.perf_counter() - start
    finally:
        seen.pool.release(table)


def _reference(spec: Spec, model: Any) -> dict[str, Any]:
    """Writes each text's token ids and, float32, its logits (tokens, vocab) or its embedding (dim,)."""
    ids = _texts(model, spec["texts"], spec["window_len"])
    answers = [_answer(model, one) for one in ids]
    arrays: dict[str, Any] = {f"ids{i}": one for i, one in enumerate(ids)} | {f"answer{i}": a for i, a in enumerate(answers)}
    np.savez(_file(spec), **arrays)
    return {"texts": len(ids)}


def _texts(model: Any, count: int, length: int) -> list[NDArray[np.int32]]:
    if model.kind == "decoder":
        return list(pydoc_windows(model.tokenizer, count, length))
    return [np.asarray(model.encode_text(text, truncate=True), np.int32) for text in sentences(count)]


def _answer(model: Any, ids: NDArray[np.int32]) -> NDArray[np.float32]:
    if model.kind == "decoder":
        logits: NDArray[np.float32] = model.logits(ids.tolist())
        return logits
    vector = model.engine.embed(concatenate([Part(ids.tolist())]))[0]
    if isinstance(vector, Exception):
        raise vector
    return np.asarray(vector, np.float32)


def _quality(spec: Spec, model: Any) -> dict[str, Any] | None:
    """How near the rung's answers are to the reference's; None without a reference. Runs last: it takes memory of its own."""
    if not spec["texts"]:
        return None
    with np.load(_file(spec)) as saved:
        if model.kind == "decoder":
            pairs = iter(range(spec["texts"]))
            windows = (saved[f"ids{i}"] for i in range(spec["texts"]))
            found = kl.measure(lambda ids: saved[f"answer{next(pairs)}"], lambda ids: _answer(model, ids), windows)
            return dict(found.to_json())
        vectors = np.stack([_answer(model, saved[f"ids{i}"]) for i in range(spec["texts"])])
        reference = np.stack([saved[f"answer{i}"] for i in range(spec["texts"])])
    return cosines(reference, vectors)


def cosines(reference: NDArray[np.float32], vectors: NDArray[np.float32]) -> dict[str, Any]:
    """Mean and least cosine of two sets of embeddings, (texts, dim) each."""
    similarity = kl.cosine(reference, vectors)
    return {"texts": len(similarity), "mean_cosine": float(similarity.mean()), "least_cosine": float(similarity.min())}


def _file(spec: Spec) -> Path:
    return Path(spec["reference"])
