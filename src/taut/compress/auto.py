"""auto: the fastest precision of a model whose answers stay close enough to its own in fp32, found by a short canary before it serves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from taut import api
from taut.errors import RequestError
from taut.quality import kl

# From the fewest bytes a token to the most: the order of decode speed, and on the way the first that passes is taken.
CANDIDATES = ("int4-g128", "int4-g64", "int4-g32", "int8", "int8-g64", "bf16", "fp32")
MAX_KL = 0.02  # nats a token; int8 stays below, 4 bits rounded to nearest mostly do not
MAX_DISTANCE = 0.002  # 1 - cosine of an encoder's vectors
CANARY_TOKENS, CANARY_WINDOWS = 192, 2
CANARY = (
    "A queue that grows without bound is a promise that cannot be kept. When work arrives faster than it is done, the only choices are to "
    "refuse some of it early, to do less for each request, or to let everybody wait until nobody is served in time. ",
    "def schedule(requests, budget):\n    admitted = []\n    for request in sorted(requests, key=lambda r: r.deadline):\n        if "
    "request.tokens <= budget:\n            admitted.append(request)\n            budget -= request.tokens\n    return admitted\n\n",
)


@dataclass(frozen=True)
class Trial:
    """One precision's canary: how far its answers are from fp32's (KL divergence in nats, or 1 - cosine)."""

    precision: str
    distance: float
    passed: bool


def choose(
    ref: str, *, report: Callable[[Trial], None] | None = None, limit: float | None = None, **options: Any
) -> tuple[str, list[Trial]]:
    """(the precision, what was tried). `options` are load's. fp32 always passes: it is what the others are compared with."""
    reference = api.load(ref, **{**options, "precision": "fp32"})
    try:
        questions = _questions(reference)
        truth = _answers(reference, questions)
        most = limit if limit is not None else MAX_KL if reference.kind == "decoder" else MAX_DISTANCE
    finally:
        reference.close()
    trials: list[Trial] = []
    for precision in CANDIDATES:
        if precision == "fp32":
            trials.append(Trial(precision, 0.0, True))
        else:
            model = api.load(ref, **{**options, "precision": precision})
            try:
                if precision not in model.plan.precision:
                    continue  # its groups divide no layer of this model
                distance = _distance(model, questions, truth, _answers(model, questions))
            finally:
                model.close()
            trials.append(Trial(precision, distance, distance <= most))
        if report:
            report(trials[-1])
        if trials[-1].passed:
            return precision, trials
    raise AssertionError("fp32 passes")


def _questions(model: api.Model) -> list[list[int]]:
    if model.tokenizer is None:
        raise RequestError(
            f"{model.name} has no tokenizer, so no text to try precisions on; give --precision", param="precision"
        )
    length = min(CANARY_TOKENS, model.context_len)
    texts = [text * 8 for text in CANARY[:CANARY_WINDOWS]]
    return [model.tokenizer.encode(text)[:length] for text in texts]


def _answers(model: api.Model, questions: list[list[int]]) -> list[Any]:
    return [model.logits(ids) for ids in questions] if model.kind == "decoder" else [model.embed_ids(questions)]


def _distance(model: api.Model, questions: list[list[int]], truth: list[Any], given: list[Any]) -> float:
    if model.kind == "encoder":
        return float(1 - np.mean(kl.cosine(truth[0], given[0])))
    windows = [np.array(ids, np.int32) for ids in questions]
    exact, other = iter(truth), iter(given)
    return kl.measure(lambda _: next(exact), lambda _: next(other), windows).kl
