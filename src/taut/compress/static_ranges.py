"""The ranges of static inputs: from an observer, or from the one whose artefact answers most like the original model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from taut import api
from taut.checkpoint import Checkpoint
from taut.checkpoint.quantized import SHIFTED
from taut.checkpoint.safetensors import SafetensorsFile
from taut.compress.calibration import Calibration
from taut.compress.layers import Layer
from taut.compress.smoothing import Smoothing
from taut.errors import UsageError
from taut.loading import Progress
from taut.quality import domains, kl
from taut.quant.formats import SCHEMES
from taut.quant.observers import OBSERVERS
from taut.quant.schemes import int8
from taut.quant.schemes.static import Calibrated, calibrated, shifted_bias

if TYPE_CHECKING:
    from taut.compress.quantize import _Job

WINDOWS, WINDOW_LEN, TEXTS = 2, 256, 64


def of(layers: list[Layer], calibration: Calibration | None, observer: str, smooth: Smoothing) -> dict[str, Calibrated]:
    """How the input of each static layer is quantized, by the layer's name."""
    found: dict[str, Calibrated] = {}
    for layer in layers:
        if SCHEMES[layer.scheme].inputs != "static":
            continue
        if calibration is None:
            raise UsageError(f"{layer.scheme} needs calibration: give --calibration FILE, DIR or self")
        statistics = calibration.statistics[layer.name]
        low, high = OBSERVERS[observer](statistics)
        scale = smooth.of_input(layer)
        if scale is not None:
            # The statistics are of the input before it was smoothed; the observer's cut of the range carries over.
            whole = max(abs(bound) for bound in statistics.range(sinks=False))
            cut = max(abs(low), abs(high)) / whole if whole else 1.0
            largest = float((statistics.channel_absmax(sinks=False) / scale).max()) * cut
            low, high = -largest, largest
        found[layer.name] = calibrated(low, high)
    return found


def choose(job: _Job, smooth: Smoothing, progress: Progress | None) -> tuple[str, dict[str, Calibrated], dict[str, Any]]:
    """(the best observer, its ranges, every observer's figure): the KL divergence of a decoder's answers, 1 - cosine of an encoder's."""
    original = api.load(
        job.ref,
        precision="fp32",
        threads=job.settings.threads,
        max_context=WINDOW_LEN if job.built.context_len > WINDOW_LEN else None,
    )
    try:
        questions = _questions(original)
        truth = _answers(original, questions)
    finally:
        original.close()
    scores: dict[str, float] = {}
    for done, name in enumerate(OBSERVERS):
        if progress:
            progress("observers", done, len(OBSERVERS))
        static = of(job.layers, job.calibration, name, smooth)
        job.use_ranges(static, smooth, job.work / "model.safetensors")
        model = api.load(str(job.work), threads=job.settings.threads)
        try:
            scores[name] = _distance(model, questions, truth, _answers(model, questions))
        finally:
            model.close()
    best = min(scores, key=lambda name: (scores[name], name))
    static = of(job.layers, job.calibration, best, smooth)
    job.use_ranges(static, smooth, job.work / "model.safetensors")
    return best, static, scores


def _questions(model: api.Model) -> list[list[int]]:
    """Windows of calibration text as token ids."""
    if model.tokenizer is None:
        raise UsageError(f"{model.name} has no tokenizer, so observers cannot be tried on text; choose one with --observer")
    text = domains.calibration_text()
    if model.kind == "encoder":
        lines = [line for line in text.splitlines() if len(line.split()) > 4][:TEXTS]
        return [model.encode_text(line, truncate=True) for line in lines]
    ids = model.tokenizer.encode(text[: WINDOWS * WINDOW_LEN * 16])
    length = min(WINDOW_LEN, model.context_len)
    return [ids[i * length : (i + 1) * length] for i in range(WINDOWS) if (i + 1) * length <= len(ids)]


def _answers(model: api.Model, questions: list[list[int]]) -> list[Any]:
    return [model.logits(ids) for ids in questions] if model.kind == "decoder" else [model.embed_ids(questions)]


def _distance(model: api.Model, questions: list[list[int]], truth: list[Any], given: list[Any]) -> float:
    if model.kind == "encoder":
        return float(1 - np.mean(kl.cosine(truth[0], given[0])))
    windows = [np.array(ids, np.int32) for ids in questions]
    exact, other = iter(truth), iter(given)
    return kl.measure(lambda _: next(exact), lambda _: next(other), windows).kl


def patch_biases(path: Path, layers: list[Layer], static: Mapping[str, Calibrated], checkpoint: Checkpoint) -> None:
    """Writes the biases that `static` shifts into the finished file, over those of other ranges."""
    for layer in layers:
        if layer.name not in static:
            continue
        file = SafetensorsFile(path)
        try:
            place = file.offset(layer.tensor + SHIFTED)
            weight = int8.Quantized(np.array(file.read(layer.tensor)), np.array(file.read(f"{layer.tensor}.scale")))
        finally:
            file.close()
        bias = None if layer.bias is None else np.asarray(checkpoint.read(layer.bias), np.float32)
        with path.open("r+b") as out:
            out.seek(place)
            out.write(shifted_bias(weight, bias, static[layer.name]).tobytes())
