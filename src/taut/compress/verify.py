"""verify: an artefact loads, computes on this machine what it computed where it was made, and is what its receipt says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taut import api
from taut import checkpoint as checkpoints
from taut.compress import golden, receipt
from taut.compress.artefact import Artefact, open_artefact
from taut.errors import ModelFormatError, TautError
from taut.loading import Progress
from taut.quant.formats import SCHEMES

CLOSE = 1e-3  # of logits whose products are of 16 bits, where instruction sets may round apart


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    passed: bool
    detail: str


def verify(where: str | Path, *, threads: int | None = None, progress: Progress | None = None) -> list[Check]:
    """Every check of the artefact, in order; the later ones are left out where an earlier one makes them impossible."""
    try:
        artefact = open_artefact(where)
    except ModelFormatError as error:
        return [Check("receipt", False, str(error))]
    found = [Check("receipt", True, "complete, and has its own digest"), _files(artefact)]
    for check in _rest(artefact, threads, progress):
        found.append(check)
    return found


def _files(artefact: Artefact) -> Check:
    stated, there = artefact.receipt["files"], receipt.digests(artefact.path)
    changed = sorted(name for name in stated.keys() & there.keys() if stated[name] != there[name])
    missing, new = sorted(stated.keys() - there.keys()), sorted(there.keys() - stated.keys())
    faults = [
        f"{word}: {', '.join(names[:5])}"
        for word, names in (("changed", changed), ("missing", missing), ("not listed", new))
        if names
    ]
    return Check("files", not faults, "; ".join(faults) or f"{len(there)} files have their digests")


def _rest(artefact: Artefact, threads: int | None, progress: Progress | None) -> Iterator[Check]:
    try:
        with checkpoints.open(str(artefact.path), with_text=False) as checkpoint:
            yield _layers(artefact, checkpoint)
        model = api.load(str(artefact.path), exact=True, threads=threads, progress=progress)
    except TautError as error:
        yield Check("loads", False, str(error))
        return
    try:
        yield Check("loads", True, model.summary())
        yield _golden(artefact, model)
    finally:
        model.close()


def _layers(artefact: Artefact, checkpoint: checkpoints.Checkpoint) -> Check:
    """The schemes and bytes of the receipt are those of the files."""
    quantization = checkpoint.quantization
    if quantization is None:
        return Check("layers", False, "config.json states no quantization")
    faults = []
    stated: list[Any] = artefact.receipt["layers"]
    for entry in stated:
        stored = quantization.layers.get(entry["tensor"])
        if stored is None or stored.scheme != entry["scheme"]:
            faults.append(f"{entry['name']} is {stored.scheme if stored else 'absent'}, the receipt says {entry['scheme']}")
        elif checkpoint.tensors[entry["tensor"]].nbytes != entry["bytes"]:
            faults.append(
                f"{entry['name']} has {checkpoint.tensors[entry['tensor']].nbytes:,} bytes, the receipt says {entry['bytes']:,}"
            )
    if len(stated) != len(quantization.layers):
        faults.append(f"config.json has {len(quantization.layers)} layers, the receipt {len(stated)}")
    return Check("layers", not faults, "; ".join(faults[:3]) or f"{len(stated)} layers are of the schemes and sizes stated")


def _golden(artefact: Artefact, model: api.Model) -> Check:
    try:
        ids, values = golden.read(artefact.path, model.loaded.built.vocab_size)
    except TautError as error:
        return Check("golden", False, str(error))
    _, now = golden.answer(model, ids)
    found = golden.compare(values, now)
    exact = all(SCHEMES[layer["scheme"]].weight != "bf16" for layer in artefact.receipt["layers"])
    close = found["largest_difference"] <= CLOSE and found["same_top1"]
    detail = "the same bits" if found["same_bits"] else f"differs by up to {found['largest_difference']:.3g}"
    return Check("golden", found["same_bits"] if exact else close, f"{detail} on {', '.join(model.loaded.describe_machine())}")
