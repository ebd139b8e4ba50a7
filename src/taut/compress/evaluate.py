"""`taut.evaluate`: how close a model is to its reference, on held-out text that no calibration has seen.

found = taut.evaluate("smollm2-135m")  # int8 against fp32
print(found.overall.kl, found.overall.top1)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from taut import api
from taut.checkpoint.receipt_file import RECEIPT
from taut.compress.evaluation import Contender, Evaluation, Judgement, MetricPair
from taut.compress.judge import check_pair, judge_decoder, judge_encoder
from taut.errors import TautError, UsageError
from taut.quality import domains as held_out
from taut.units import counted

Progress = Callable[[str, int, int], None]
Metric = Callable[[api.Model], float]
WINDOWS, LENGTH, SENTENCES = 8, 512, 500


def evaluate(
    model: api.Model | str,
    against: api.Model | str | None = None,
    *,
    windows: int | None = None,
    length: int | None = None,
    domains: Sequence[str] | None = None,
    metric: Metric | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Compare `model` with `against`: each a loaded Model, or what taut.load takes. Named, `model` is loaded with load's defaults and
    `against` in fp32; `against` None is what `model` was made from (reference_of).

    A decoder is judged by `windows` (8) texts of each domain, each of `length` tokens (512, or what the context holds); an encoder by
    `windows` (500) sentences in all. `domains`: some of prose, technical and code; default all that this machine has text of. `metric` is
    called with either model and returns a number. `progress` is called with (stage, done, total).

    Both models are in memory at once. Raises UsageError, NumericalError for a non-finite result, and what taut.load raises.
    """
    begun = time.perf_counter()
    for name, value in (("windows", windows), ("length", length)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; at least 1 is accepted")
    chosen, skipped = _available(domains)
    report: Progress = (lambda stage, done, total: None) if progress is None else progress
    with _opened(model, against, progress) as (candidate, reference):
        check_pair(candidate, reference)
        judgement = _judge(candidate, reference, chosen, windows, length, report)
        pair = None if metric is None else measure(metric, candidate, reference, report)
        return Evaluation(
            candidate.kind, _contender(candidate), _contender(reference), judgement.overall, judgement.domains, judgement.texts,
            skipped, pair, time.perf_counter() - begun,
        )  # fmt: skip


def reference_of(model: api.Model) -> str:
    """What `model` was made from, as taut.load takes it: its receipt's reference, or else its own checkpoint."""
    receipt = getattr(model, "receipt", None)
    return str(receipt["made_from"]["ref"] if receipt else model.loaded.checkpoint.ref)


def _available(domains: Sequence[str] | None) -> tuple[list[str], dict[str, str]]:
    """(domains to judge by, why others are left out). One that was asked for is never left out: UsageError."""
    if isinstance(domains, str):
        raise UsageError(f"domains must be a sequence of names, not the text {domains!r}")
    names = held_out.check(held_out.DOMAINS if domains is None else domains)
    missing = {name: reason for name in names if (reason := held_out.missing(name)) is not None}
    if domains is not None:
        for name, reason in missing.items():
            raise UsageError(f"there is no text of the domain {name}: {reason}; or leave the domain out")
    return [name for name in names if name not in missing], missing


@contextmanager
def _opened(
    model: api.Model | str, against: api.Model | str | None, progress: Progress | None
) -> Iterator[tuple[api.Model, api.Model]]:
    """(candidate, reference); what was loaded here is closed in the end."""
    loaded: list[api.Model] = []
    try:
        if isinstance(model, str):
            model = api.load(model, progress=progress)
            loaded.append(model)
        if against is None or isinstance(against, str):
            against = load_reference(reference_of(model) if against is None else against, model, progress)
            loaded.append(against)
        yield model, against
    finally:
        for each in loaded:
            each.close()


def load_reference(ref: str, model: api.Model, progress: Progress | None = None) -> api.Model:
    """`ref` in fp32 (an artefact as what it is), on as many threads and for sequences as long as `model`."""
    config = model.loaded.config
    longest = model.context_len if model.kind == "decoder" else None
    precision = None if (Path(ref) / RECEIPT).is_file() else "fp32"
    return api.load(
        ref, precision=precision, threads=config.threads, executor=config.executor, max_context=longest, progress=progress
    )


def _judge(
    candidate: api.Model, reference: api.Model, domains: list[str], windows: int | None, length: int | None, report: Progress
) -> Judgement:
    if candidate.kind == "encoder":
        if length is not None:
            raise UsageError(f"length is given, but {candidate.name} is an encoder, judged by whole sentences; leave it out")
        return judge_encoder(candidate, reference, domains, windows or SENTENCES, report)
    longest = min(candidate.context_len, reference.context_len)
    if length is not None and length > longest:
        raise UsageError(
            f"windows of {counted(length, 'token')} asked for, but the models take at most {longest:,}; give at most that"
        )
    return judge_decoder(candidate, reference, domains, windows or WINDOWS, length or min(LENGTH, longest), report)


def measure(metric: Metric, candidate: api.Model, reference: api.Model, report: Progress) -> MetricPair:
    """The user's metric on both models. UsageError when it fails, or returns no finite number."""
    name = str(getattr(metric, "__name__", type(metric).__name__))
    report("metric", 0, 2)
    value = _number_of(metric, name, candidate)
    report("metric", 1, 2)
    pair = MetricPair(name, value, _number_of(metric, name, reference))
    report("metric", 2, 2)
    return pair


def _number_of(metric: Metric, name: str, model: api.Model) -> float:
    which = f"{model.name} ({model.loaded.describe_precision()})"
    try:
        value: Any = metric(model)
    except TautError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"the metric {name} failed on {which}: {type(error).__name__}: {error}") from error
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise UsageError(f"the metric {name} gave {value!r} for {which}; it must return a finite number")
    return float(value)


def _contender(model: api.Model) -> Contender:
    return Contender(model.name, model.loaded.checkpoint.ref, model.loaded.describe_precision())
