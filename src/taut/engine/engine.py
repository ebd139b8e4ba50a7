"""Engine: runs one batch and chooses the next tokens. Knows no request, no queue, no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taut.engine.batch import Batch
from taut.engine.kv_cache import KVPool
from taut.engine.sampler import RowChoice, sample_rows
from taut.errors import NumericalError

Floats = NDArray[np.float32]


class Executor(Protocol):
    """Runs a plan on a batch and returns its outputs, float32, one array each."""

    def run(self, batch: Batch) -> list[Any]: ...

    def trim(self) -> None:
        """Give memory that only a run needs back to the system; what it returned is no longer valid."""

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """What the guards have counted: of each step, by kind. Kinds at zero are left out."""

    def totals(self) -> Mapping[str, int]:
        """The same of all steps together."""


class Sampler(Protocol):
    """Chooses a token for each row of logits (rows, vocab), or says why that request ends."""

    def __call__(self, logits: Floats, rows: Sequence[RowChoice]) -> list[int | NumericalError]: ...


class Engine:
    """One model ready to run. `kv` is None for encoders."""

    def __init__(self, executor: Executor, kv: KVPool | None, sampler: Sampler = sample_rows) -> None:
        self.executor = executor
        self.kv = kv
        self.sampler = sampler

    def trim(self) -> None:
        """Give the memory of activations back; the next step takes it again."""
        self.executor.trim()

    def guards(self) -> dict[str, int]:
        """What the guards have counted in all steps together, by kind."""
        return dict(self.executor.totals())

    def run(self, batch: Batch, choices: Sequence[RowChoice]) -> list[int | NumericalError]:
        """One step of a decoder: for each of the batch's rows the sampled token, or the error that stops its request alone."""
        (logits,) = self.executor.run(batch)
        return self.sampler(logits, choices)

    def logits(self, batch: Batch) -> Floats:
        """The batch's logit rows, (rows, vocab)."""
        return np.array(self.executor.run(batch)[-1], dtype=np.float32)

    def embed(self, batch: Batch) -> list[Floats | NumericalError]:
        """One vector per sequence of an encoder's batch, or the error that fails that sequence alone."""
        vectors = np.array(self.executor.run(batch)[-1], dtype=np.float32)
        finite = [bool(np.isfinite(vector).all()) for vector in vectors]
        bad = NumericalError("the model produced a non-finite embedding for this input")
        return [vector if ok else bad for vector, ok in zip(vectors, finite, strict=True)]
