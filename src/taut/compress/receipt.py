"""The receipt: what an artefact is, layer by layer, and how good it is. Same inputs, machine and version: the same receipt; it holds no date.

taut, made_from       the tool's version; the model's reference and a digest of its files
recipe, observer      what was asked for; the observer that was used, and what each that was tried reached
layers                name, tensor, scheme, reason, bytes, error ||w - ŵ||² / ||w||², digest, tp; range of static inputs
calibration           digest, tokens, warnings
smoothing             by norm: the migration strength that was found best
bytes, fallbacks      of the weights; layers that could not be what the recipe says, and rows that left a calibrated range
quality               against the model itself in fp32 on held-out text (quality/)
warnings              what was asked for and had no effect
files                 SHA-256 of every file of the artefact
digest                SHA-256 of all that stands above
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import taut
from taut import api
from taut.checkpoint import Checkpoint
from taut.checkpoint.receipt_file import DIGEST, RECEIPT, VERSION
from taut.checkpoint.receipt_file import digest_of as own_digest
from taut.compress import evaluate
from taut.compress.calibration import Calibration
from taut.compress.layers import Layer, fallbacks
from taut.compress.recipe import Recipe
from taut.loading import Progress
from taut.quant.schemes.static import Calibrated

TP_DEGREES = (2, 4, 8)
SENTENCES_PER_WINDOW = 100
Metric = Callable[[api.Model], float]


def tool() -> str:
    return f"taut {taut.__version__}"


@dataclass(frozen=True)
class Facts:
    """What a receipt is made of. `made`: digest, error and bytes of each layer; `static`: how its input is quantized; `tried`: what each
    observer reached."""

    checkpoint: Checkpoint
    family: str
    recipe: Recipe
    layers: list[Layer]
    calibration: Calibration | None
    alphas: Mapping[str, float]
    static: Mapping[str, Calibrated]
    made: Mapping[str, Mapping[str, Any]]
    observer: str | None
    tried: Mapping[str, float]
    quality: dict[str, Any] | None
    warnings: Sequence[str]


def measure(
    folder: Path, reference: str, windows: int, metric: Metric | None, options: Mapping[str, Any], progress: Progress | None
) -> dict[str, Any]:
    """The artefact in `folder` against the model that it was made from, in fp32: Evaluation.to_json without what differs from run to run.
    `windows`: of each domain; an encoder is judged by 100 sentences for each."""
    candidate = api.load(str(folder), **options)
    try:
        count = max(windows, 1) * (1 if candidate.kind == "decoder" else SENTENCES_PER_WINDOW)
        found = evaluate.evaluate(candidate, reference, windows=count, metric=metric, progress=progress)
        counts = candidate.engine.guards()
    finally:
        candidate.close()
    stated = found.to_json()
    kept = {name: stated[name] for name in ("kind", "overall", "domains", "texts", "skipped", "metric")}
    return {
        **kept,
        "precision": found.model.precision,
        "against": found.against.precision,
        "counts": dict(sorted(counts.items())),
    }


def make(facts: Facts, folder: Path) -> dict[str, Any]:
    """The receipt of the artefact in `folder`, whose other files are complete."""
    stated = [_layer(layer, facts.made[layer.name], facts.static.get(layer.name)) for layer in facts.layers]
    checkpoint, calibration, recipe = facts.checkpoint, facts.calibration, facts.recipe
    receipt: dict[str, Any] = {
        "version": VERSION,
        "taut": taut.__version__,
        "made_from": {"ref": checkpoint.ref, "name": checkpoint.name, "digest": digest_of(checkpoint), "family": facts.family},
        "recipe": {**asdict(recipe), "pins": list(recipe.pins), "algorithm": recipe.chosen_algorithm},
        "observer": facts.observer,
        "observers_tried": dict(facts.tried),
        "layers": stated,
        "bytes": sum(layer["bytes"] for layer in stated),
        "fallbacks": {
            "layers": [layer.name for layer in fallbacks(facts.layers)],
            "rows": ((facts.quality or {}).get("counts") or {}).get("fallback", 0),
        },
        "calibration": None
        if calibration is None
        else {"digest": calibration.digest, "tokens": calibration.tokens, "warnings": list(calibration.warnings)},
        "smoothing": dict(facts.alphas),
        "tp_ok": {str(degree): all(degree in layer.tp for layer in facts.layers) for degree in TP_DEGREES},
        "quality": facts.quality,
        "warnings": list(facts.warnings),
        "files": digests(folder),
    }
    return {**receipt, DIGEST: own_digest(json.loads(json.dumps(receipt)))}


def _layer(layer: Layer, made: Mapping[str, Any], static: Calibrated | None) -> dict[str, Any]:
    stated = {
        "name": layer.name, "tensor": layer.tensor, "shape": list(layer.shape), "scheme": layer.scheme, "reason": layer.reason, **made,
        "tp_ok": list(layer.tp),
    }  # fmt: skip
    if static is not None:
        low, high = static.bounds
        stated["range"] = {"low": low, "high": high, "scale": static.scale, "zero_point": static.zero_point}
    return stated


def digest_of(checkpoint: Checkpoint) -> str:
    """Names the bytes of the weights that a model was made from, wherever and whenever they were written."""
    digest = hashlib.sha256()
    for path in checkpoint.files:
        with path.open("rb") as file:
            digest.update(_sha256(file).encode())
    return digest.hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in the folder but the receipt itself."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != RECEIPT:
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = _sha256(file)
    return found


def _sha256(file: Any) -> str:
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()
