"""Calibration: the statistics of every linear's input over some text, and the file that they are kept in.

Knows how a calibration is written and checked when read; not how it is measured (calibrate.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint import Checkpoint
from taut.errors import ModelFormatError, UsageError
from taut.quant.statistics import Sample, Statistics

VERSION = 1
_PLAIN = ("tokens", "windows", "sinks", "text_digest", "model_digest")


@dataclass(frozen=True, eq=False)
class Calibration:
    """`by_value` are statistics by value of the graph, `inputs` the value that each linear reads: q, k and v have one. `tokens` and
    `windows` were read of a text whose token ids hash to `text_digest`, by the model of files `model_digest`; of each window the first
    `sinks` tokens are kept apart. `warnings`: what makes it less good than it could be, one sentence each."""

    by_value: Mapping[str, Statistics]
    inputs: Mapping[str, str]
    tokens: int
    windows: int
    sinks: int
    text_digest: str
    model_digest: str
    warnings: tuple[str, ...] = ()

    @property
    def statistics(self) -> dict[str, Statistics]:
        """By linear, as the graph names them before any fusion: "layers.0.q", …, "logits"."""
        return {linear: self.by_value[value] for linear, value in self.inputs.items()}

    @property
    def digest(self) -> str:
        """Names the text and the model that these statistics are of."""
        return f"{self.model_digest}-{self.text_digest}"

    def check(self, checkpoint: Checkpoint) -> None:
        """UsageError when the statistics are of another model's files."""
        if self.model_digest != digest_of(checkpoint):
            raise UsageError(f"the calibration is of other files than {checkpoint.name}'s; calibrate this model")

    def save(self, path: Path) -> None:
        """Write it as npz; a file that is there is replaced at once or not at all. UsageError when it cannot be written."""
        write(path, self, Sample())

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Of a file that `save` made. UsageError when it is not there, ModelFormatError when it is no such file or damaged."""
        if not path.is_file():
            raise UsageError(f"there is no calibration {str(path)!r}; give a file that Calibration.save wrote")
        return read(path)[0]


def digest_of(checkpoint: Checkpoint) -> str:
    """A hash of the identity of the model's files."""
    return hashlib.blake2b(checkpoint.source.identity().encode(), digest_size=16).hexdigest()


def write(path: Path, calibration: Calibration, sample: Sample) -> None:
    """`sample` is what a run that is not complete goes on with."""
    head = {
        "version": VERSION,
        "inputs": dict(calibration.inputs),
        "values": list(calibration.by_value),
        "warnings": list(calibration.warnings),
        "sample_rows": sample.num_rows,
        **{name: getattr(calibration, name) for name in _PLAIN},
    }
    arrays: dict[str, NDArray[Any]] = {"head": np.frombuffer(json.dumps(head).encode(), np.uint8), "sample": sample.keys}
    for index, statistics in enumerate(calibration.by_value.values()):
        arrays |= {f"{index}.{name}": array for name, array in statistics.to_arrays().items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(partial, path)
    except OSError as error:
        raise UsageError(
            f"the calibration cannot be written to {str(path)!r}: {error.strerror}; choose another place"
        ) from None
    finally:
        if partial.is_file():
            partial.unlink()


def read(path: Path) -> tuple[Calibration, Sample]:
    """The inverse of `write`; ModelFormatError for anything else."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            if head["version"] != VERSION:
                raise ValueError(f"its version is {head['version']}, not {VERSION}; calibrate again")
            values = enumerate(head["values"])
            by_value = {value: Statistics.from_arrays(_Prefixed(arrays, f"{index}.")) for index, value in values}
            sample = Sample()
            sample.keys[...], sample.num_rows = arrays["sample"], head["sample_rows"]
            plain = {name: head[name] for name in _PLAIN}
            found = Calibration(by_value, head["inputs"], warnings=tuple(head["warnings"]), **plain)
            if unknown := sorted(set(found.inputs.values()) - set(by_value)):
                raise ValueError(f"it has no statistics of {', '.join(unknown[:4])}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ModelFormatError(f"is no calibration that taut wrote, or is damaged ({error})", file=path.name) from None
    return found, sample


class _Prefixed(Mapping[str, NDArray[Any]]):
    """The arrays of a file whose names begin alike, by the rest of their names; read when asked for."""

    def __init__(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        self._arrays, self._prefix = arrays, prefix

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self._prefix) for name in self._arrays if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)
