"""Two loaded models over the same held-out texts: a decoder window by window, an encoder sentence by sentence.

Of a window's logits only a few numbers a position are kept, so memory does not grow with the number of windows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.api import Model
from taut.compress.evaluation import Judgement
from taut.errors import NumericalError, UsageError
from taut.quality import domains as held_out
from taut.quality import embeddings, positions
from taut.quality.figures import figures
from taut.units import counted

Report = Callable[[str, int, int], None]
Floats = NDArray[np.float32]
STAGE = "evaluating"
BATCH = 25  # sentences between two reports; the vectors do not depend on it


def check_pair(candidate: Model, reference: Model) -> None:
    """UsageError unless the two answer the same kind of question in the same terms."""
    for model in (candidate, reference):
        if model.tokenizer is None:
            raise UsageError(
                f"{model.name} has no tokenizer, so no text can be put to it; give a checkpoint with its tokenizer"
            )
    facts = (
        ("the kind is", candidate.kind, reference.kind),
        ("the vectors' length is", candidate.embedding_dim, reference.embedding_dim),
        ("the vocabulary's size is", candidate.loaded.built.vocab_size, reference.loaded.built.vocab_size),
    )
    for what, one, other in facts:
        if one != other:
            raise _incomparable(candidate, reference, f"{what} {one}, the other's {other}")
    sample = held_out.sentences("technical", 20)
    cut, otherwise = ([model.tokenizer.encode(text) for text in sample] for model in (candidate, reference))  # type: ignore[union-attr]
    if cut != otherwise:
        raise _incomparable(candidate, reference, "they cut text into different tokens")


def _incomparable(candidate: Model, reference: Model, why: str) -> UsageError:
    return UsageError(
        f"{candidate.name} and {reference.name} cannot be compared: {why}; give as reference the model that the other was made from"
    )


def judge_decoder(
    candidate: Model, reference: Model, domains: Sequence[str], count: int, length: int, report: Report
) -> Judgement:
    """Over `count` windows of `length` tokens of each domain."""
    assert candidate.tokenizer is not None, "checked by check_pair"
    texts = {name: held_out.windows(candidate.tokenizer, name, count, length) for name in domains}  # (count, length) each
    found: dict[str, list[positions.Positions]] = {name: [] for name in domains}
    done, total = 0, count * len(domains)
    report(STAGE, done, total)
    for name, windows in texts.items():
        for ids in windows:
            wanted, got = reference.logits(ids.tolist()), candidate.logits(ids.tolist())  # (length, vocab) each
            _check_finite(wanted, reference, f"window {done + 1}, of {name}")
            _check_finite(got, candidate, f"window {done + 1}, of {name}")
            found[name].append(positions.compare(wanted, got, ids, done))
            done += 1
            report(STAGE, done, total)
    return Judgement(
        figures(positions.join([window for windows in found.values() for window in windows])),
        {name: figures(positions.join(windows)) for name, windows in found.items()},
        {name: _digest(windows.astype("<i4").tobytes()) for name, windows in texts.items()},
    )


def judge_encoder(candidate: Model, reference: Model, domains: Sequence[str], count: int, report: Report) -> Judgement:
    """Over `count` sentences, equally many of each domain."""
    if count < 3 * len(domains):
        raise UsageError(f"{counted(count, 'sentence')} asked for; at least 3 of each domain are needed; give a larger number")
    shares = [count // len(domains) + (number < count % len(domains)) for number in range(len(domains))]
    texts = {name: held_out.sentences(name, share) for name, share in zip(domains, shares, strict=True)}
    found: dict[str, list[tuple[Floats, Floats]]] = {
        name: [] for name in domains
    }  # reference's, candidate's: (sentences, dim) each
    done = 0
    report(STAGE, done, count)
    for name, sentences in texts.items():
        for first in range(0, len(sentences), BATCH):
            batch = sentences[first : first + BATCH]
            wanted, got = reference.embed(batch, truncate=True), candidate.embed(batch, truncate=True)
            _check_finite(wanted, reference, f"the sentences of {name}")
            _check_finite(got, candidate, f"the sentences of {name}")
            found[name].append((wanted, got))
            done += len(batch)
            report(STAGE, done, count)
    pairs = {name: [np.concatenate(vectors) for vectors in zip(*batches, strict=True)] for name, batches in found.items()}
    whole = [np.concatenate(vectors) for vectors in zip(*pairs.values(), strict=True)]
    return Judgement(
        embeddings.compare(*whole),
        {name: embeddings.compare(*pair) for name, pair in pairs.items()},
        {name: _digest("\n".join(sentences).encode()) for name, sentences in texts.items()},
    )


def _check_finite(values: NDArray[Any], model: Model, where: str) -> None:
    if not np.isfinite(values).all():
        raise NumericalError(f"{model.name} ({model.loaded.describe_precision()}) gives a non-finite result in {where}")


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
