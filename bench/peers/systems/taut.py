"""This project, at the precision that is the variant; it alone reports its share of the machine's limit."""

from __future__ import annotations

import functools
import statistics
from typing import Any

import numpy as np
from common import Loading, Result, Spec, answer, burst, rss_bytes

import taut
from taut.bench import encoder, latency, limits
from taut.bench.probe import Subject, around, middle, share, subject
from taut.bench.work import count
from taut.config import PRECISIONS
from taut.engine.batch import Part, concatenate

NEEDS = {"decoder": ("taut",), "encoder": ("taut",), "sentences": ("taut",)}
VARIANTS = {"decoder": PRECISIONS, "encoder": PRECISIONS, "sentences": PRECISIONS}


def prepare(spec: Spec) -> None:
    """Nothing: the folder is what taut runs from."""


def measure(spec: Spec) -> Result:
    loading = Loading()
    model = taut.load(spec["model"], precision=spec["variant"], threads=spec["threads"], max_context=spec.get("max_context"))
    head, seen = loading.done(f"taut {taut.__version__}"), subject(model)

    def gauge() -> limits.Limits:
        return limits.measure(spec["threads"])

    if spec["work"] == "decoder":
        load = latency.Load(spec["prompt"], spec["gen"], spec["batch"], spec["reps"])
        result = latency.run(seen, load, gauge)
        answer(spec, lambda ids: model.logits(ids.tolist()))
    else:
        if spec["work"] == "encoder":
            result = encoder.run(seen, encoder.Load(spec["length"], spec["batch"], spec["reps"], 3), gauge)
        else:
            result = _sentences(spec, model, seen, gauge)
        answer(spec, lambda ids: np.asarray(model.engine.embed(concatenate([Part(ids.tolist())]))[0]))
    return {**head, **result}


def _burst(model: Any, texts: list[str]) -> list[float]:
    return burst(lambda: model.embed(texts, truncate=True))[1:]


def _sentences(spec: Spec, model: Any, seen: Subject, gauge: Any) -> Result:
    cases, seen_limits = {}, []
    for name, texts in spec["cases"].items():
        batch = concatenate([Part(model.encode_text(text, truncate=True)) for text in texts])
        work = count(seen.plan, seen.weights, batch, 0.0)
        once = functools.partial(_burst, model, texts)
        once()
        pairs = [(statistics.median(times), found) for times, found in around(gauge, spec["reps"], once)]
        shares = [share(work, found, seconds) for seconds, found in pairs]
        median_s = statistics.median(seconds for seconds, _ in pairs)
        cases[name] = {
            "sentences_per_s": len(texts) / median_s,
            "best_way": "one call",
            "of_limit": statistics.median(shares),
            "repetitions": [{"seconds": s, "of_limit": part} for (s, _), part in zip(pairs, shares, strict=True)],
        }
        seen_limits += [found for _, found in pairs]
    return {"cases": cases, "rss_bytes": rss_bytes(), "limits": dict(middle(seen_limits))}
