"""quantize: a model becomes an artefact, one tensor in memory at a time.

    layers → calibration → smoothing → weights, written as they are made → golden logits, quality → receipt

Everything is made beside the place where it is to be, and moved there when it is complete; what an interrupted run has written is used
by the next run of the same command.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut import api, models
from taut import checkpoint as checkpoints
from taut.checkpoint import Checkpoint
from taut.checkpoint.quantized import SMOOTH, Quantization, StoredLayer
from taut.compress import files, golden, receipt, smoothing, static_ranges, tensor_file
from taut.compress.artefact import Artefact, write_receipt
from taut.compress.audit import audited
from taut.compress.calibrate import calibrate, opened
from taut.compress.calibration import Calibration
from taut.compress.layers import Layer, idle_choices, layers_of
from taut.compress.recipe import Recipe
from taut.compress.tensor_file import Entry, TensorFile
from taut.compress.text import read_calibration
from taut.compress.weights import entries, packed
from taut.compress.workplace import check_free, growing, make_folder
from taut.errors import CompressionError, UsageError
from taut.loading import Progress
from taut.models import BuiltModel
from taut.quality import domains
from taut.quant import algorithms
from taut.quant.formats import SCHEMES
from taut.quant.schemes.static import Calibrated

MODEL_FILE, FACTS_FILE = "model.safetensors", "layers.json"
CHECKPOINT_BYTES = 256 << 20  # written between two moments from which an interrupted run goes on
Samples = Iterable[str] | Iterable[Sequence[int]]


@dataclass(frozen=True)
class Settings:
    """What does not change the artefact's weights. windows: of held-out text in each domain, by which the artefact is judged; 0: it is not.
    metric: the user's own figure of a model. stats_cache: a folder that keeps the calibration's statistics. threads None: what the machine
    allows."""

    windows: int = 2
    metric: Callable[[api.Model], float] | None = None
    stats_cache: Path | None = None
    threads: int | None = None


def quantize(
    ref: str,
    out: str | Path,
    recipe: Recipe,
    *,
    calibration: Calibration | Samples | str | None = None,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Artefact:
    """Quantize the model `ref` into the folder `out`, which must not be there.

    calibration: a Calibration, texts or token ids, a file or folder of text, or "self" (text that the model writes); None: documentation
    and code of Python itself (quality/domains.py), where calibration is needed.
    Raises UsageError, ModelError, CompressionError; what was written stays for the next try.
    """
    place = Path(out)
    check_free(place)
    with checkpoints.open(ref) as checkpoint:
        if checkpoint.quantization is not None:
            raise UsageError(
                f"{checkpoint.name} is quantized already, to {checkpoint.quantization.scheme}; quantizing twice adds up errors that no "
                "receipt shows: give the model that it was made from"
            )
        built = models.build(checkpoint)
        chosen = settings or Settings()
        layers = audited(ref, layers_of(built, recipe), chosen.threads)
        needs = _needs_calibration(recipe, layers)
        warnings = idle_choices(recipe, layers, built.kind, idle_calibration=calibration is not None and not needs)
        with growing(place) as work:
            found = calibration
            if not isinstance(found, Calibration):
                found = _calibrated(ref, found, chosen, progress) if needs else None
            stated = _Job(ref, checkpoint, built, recipe, layers, found, work, chosen, warnings).run(progress)
    return Artefact(place, stated)


def _needs_calibration(recipe: Recipe, layers: list[Layer]) -> bool:
    return recipe.chosen_algorithm != "rtn" or any(SCHEMES[layer.scheme].inputs == "static" for layer in layers)


def _calibrated(ref: str, given: Samples | str | None, settings: Settings, progress: Progress | None) -> Calibration:
    if settings.stats_cache is not None:
        make_folder(settings.stats_cache)
    with opened(ref, settings.threads) as model:
        texts: Any = given
        if given is None:
            texts = domains.calibration_texts()
        elif isinstance(given, str):
            texts = read_calibration(given, model)
        return calibrate(model, texts, progress=progress, cache=settings.stats_cache)


@dataclass(frozen=True)
class _Job:
    """One quantization; `work` is the folder where it grows."""

    ref: str
    checkpoint: Checkpoint
    built: BuiltModel
    recipe: Recipe
    layers: list[Layer]
    calibration: Calibration | None
    work: Path
    settings: Settings
    warnings: Sequence[str]

    def run(self, progress: Progress | None) -> dict[str, Any]:
        smooth = self._smoothing(progress)
        observer = "minmax" if self.recipe.observer == "auto" else self.recipe.observer
        static = static_ranges.of(self.layers, self.calibration, observer, smooth)
        made = self._write_weights(smooth, static, progress)
        self._clear()
        self._write_config(static, smooth)
        files.write_text_files(self.work, self.checkpoint)
        tried: dict[str, Any] = {}
        if static and self.recipe.observer == "auto":
            assert self.calibration is not None
            observer, static, tried = static_ranges.choose(self, smooth, progress)
        options: dict[str, Any] = {"threads": self.settings.threads}
        model = api.load(str(self.work), exact=True, **options)
        try:
            ids, values = golden.answer(model)
        finally:
            model.close()
        if not np.isfinite(values).all():
            raise CompressionError(
                f"{self.checkpoint.name} as {self.recipe.scheme} answers a plain text with values that are not finite: its weights or "
                "activations overflow; check the checkpoint, and that the model itself answers"
            )
        golden.write(self.work, ids, values)
        quality = self._quality(options, progress)
        facts = receipt.Facts(
            self.checkpoint, self.built.family, self.recipe, self.layers, self.calibration, smooth.alphas, static, made,
            observer if static else None, tried, quality, self.warnings,
        )  # fmt: skip
        TensorFile.forget(self.work / MODEL_FILE)
        (self.work / FACTS_FILE).unlink(missing_ok=True)
        stated = receipt.make(facts, self.work)
        write_receipt(self.work, stated)
        return stated

    def _clear(self) -> None:
        """Removes what an interrupted run of another command left."""
        kept = {self.work / MODEL_FILE, self.work / FACTS_FILE, tensor_file.journal(self.work / MODEL_FILE)}
        for path in self.work.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path not in kept:
                path.unlink()

    def _quality(self, options: Mapping[str, Any], progress: Progress | None) -> dict[str, Any] | None:
        """Of the artefact against the model that it is made from; None where nothing is to be measured."""
        windows, metric = self.settings.windows, self.settings.metric
        if not windows and metric is None:
            return None
        return receipt.measure(self.work, self.ref, windows, metric, options, progress)

    @property
    def _kv(self) -> str | None:
        return self.recipe.chosen_kv if self.built.kind == "decoder" else None

    def _smoothing(self, progress: Progress | None) -> smoothing.Smoothing:
        if self.recipe.chosen_algorithm != "smoothquant":
            return smoothing.NONE
        assert self.calibration is not None
        return smoothing.find(self.layers, self.calibration, self._weight, progress)

    def _weight(self, layer: Layer) -> NDArray[np.float32]:
        wide: NDArray[np.float32] = np.asarray(self.checkpoint.read(layer.tensor), np.float32)
        return wide

    def _write_weights(
        self, smooth: smoothing.Smoothing, static: Mapping[str, Calibrated], progress: Progress | None
    ) -> dict[str, dict[str, Any]]:
        """Writes every tensor; of each layer its digest, error and bytes, by name."""
        plan = list(self._tensors(smooth, static))
        all_entries = [entry for _, own in plan for entry in own]
        total, done_bytes = len(all_entries), 0
        facts = _Facts(self.work / FACTS_FILE)
        with TensorFile(self.work / MODEL_FILE, all_entries, self._tag(smooth)) as file:
            facts.keep(file.done > 0)
            done = 0
            for maker, own in plan:
                if progress:
                    progress("quantize", done, total)
                done += len(own)
                if file.done >= done:
                    continue  # an interrupted run has made it
                arrays = maker(facts)
                for array in arrays[file.done - (done - len(own)) :]:
                    file.write(array)
                    done_bytes += array.nbytes
                self.checkpoint.source.release_pages()
                if done_bytes > CHECKPOINT_BYTES:
                    facts.save()
                    file.checkpoint()
                    done_bytes = 0
            facts.save()
        if progress:
            progress("quantize", total, total)
        return facts.layers

    def _tensors(
        self, smooth: smoothing.Smoothing, static: Mapping[str, Calibrated]
    ) -> Iterator[tuple[Callable[[_Facts], list[Any]], list[Entry]]]:
        """What makes each tensor's parts, and their entries; in the order of the model's weights."""
        by_key = {layer.key: layer for layer in self.layers}
        for key in self.built.graph.weights:
            name = self.built.renamed[key]
            layer = by_key.get(key)
            if layer is not None:
                yield self._layer_maker(layer, smooth, static.get(layer.name)), entries(layer, shifted=layer.name in static)
                continue
            info = self.checkpoint.tensors[name]
            scale = smooth.of_source(key.rpartition(".")[0])
            dtype = "float32" if scale is not None or info.dtype not in ("float32", "float16", "bfloat16") else info.dtype
            yield self._plain_maker(name, scale, dtype), [(name, dtype, info.shape)]
            if (twin := smooth.of_twin(key.rpartition(".")[0])) is not None:
                yield self._plain_maker(name, twin, "float32"), [(name + SMOOTH, "float32", info.shape)]

    def _plain_maker(self, name: str, scale: NDArray[np.float32] | None, dtype: str) -> Callable[[_Facts], list[Any]]:
        def make(_: _Facts) -> list[Any]:
            array = self.checkpoint.read(name)
            if dtype == "float32":
                array = np.asarray(array, np.float32)
            return [array if scale is None else array / scale]

        return make

    def _layer_maker(
        self, layer: Layer, smooth: smoothing.Smoothing, static: Calibrated | None
    ) -> Callable[[_Facts], list[Any]]:
        def make(facts: _Facts) -> list[Any]:
            weight = smooth.scaled(layer, self._weight(layer))
            importance = self._importance(layer, smooth)
            codes = algorithms.quantize(
                weight,
                layer.scheme,
                importance=importance,
                algorithm="rtn" if importance is None else "imatrix",
                symmetric=self.recipe.symmetric and SCHEMES[layer.scheme].weight == "int4",
                clip=layer.clips,
                name=layer.tensor,
            )
            bias = None if layer.bias is None else np.asarray(self.checkpoint.read(layer.bias), np.float32)
            outputs = smooth.of_source(layer.name)
            if bias is not None and outputs is not None:
                bias = bias / outputs
            made = packed(codes, weight, bias=bias, static=static)
            facts.layers[layer.name] = {
                "error": made.error, "digest": made.digest, "bytes": int(sum(part.nbytes for part in made.parts.values()))
            }  # fmt: skip
            return list(made.parts.values())

        return make

    def _importance(self, layer: Layer, smooth: smoothing.Smoothing) -> NDArray[np.float64] | None:
        """(K,) mean squares of the layer's inputs, by which the search of its scales weighs errors; None where numbers are only rounded.
        Smoothed weights are searched too."""
        if (
            self.calibration is None
            or self.recipe.chosen_algorithm == "rtn"
            or SCHEMES[layer.scheme].weight in ("f32", "f16", "bf16")
        ):
            return None
        squares = self.calibration.statistics[layer.name].mean_squares()
        scale = smooth.of_input(layer)
        return squares if scale is None else squares / np.square(scale, dtype=np.float64)

    def _write_config(self, static: Mapping[str, Calibrated], smooth: smoothing.Smoothing) -> None:
        stated = {layer.tensor: StoredLayer(layer.scheme, static.get(layer.name)) for layer in self.layers}
        split = (key for key in self.built.graph.weights if smooth.of_twin(key.rpartition(".")[0]) is not None)
        smoothed = tuple(self.built.renamed[key] for key in split)
        files.write_config(self.work, self.checkpoint, Quantization(self.recipe.scheme, stated, self._kv, smoothed))

    def use_ranges(self, static: Mapping[str, Calibrated], smooth: smoothing.Smoothing, weights: Path) -> None:
        """Other ranges for the inputs of the written weights."""
        static_ranges.patch_biases(weights, self.layers, static, self.checkpoint)
        self._write_config(static, smooth)

    def _tag(self, smooth: smoothing.Smoothing) -> str:
        """Names everything that determines the written bytes."""
        calibrated = None if self.calibration is None else self.calibration.digest
        stated = [
            self.checkpoint.source.identity(),
            asdict(replace(self.recipe, max_fallbacks=1.0)),
            calibrated,
            receipt.tool(),
            smooth.digest,
        ]
        return hashlib.sha256(json.dumps(stated, sort_keys=True, default=str).encode()).hexdigest()


class _Facts:
    """What is known of the layers that were written, kept beside the file for a run that goes on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.layers: dict[str, dict[str, Any]] = {}

    def keep(self, resumes: bool) -> None:
        if resumes and self._path.exists():
            self.layers = json.loads(self._path.read_text())

    def save(self) -> None:
        self._path.write_text(json.dumps(self.layers))
