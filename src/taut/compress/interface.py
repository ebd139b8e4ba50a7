"""taut.quantize: the Python face of compress/quantize.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from taut.api import Model
from taut.compress.artefact import Artefact
from taut.compress.calibrate import Calibration
from taut.compress.quantize import Evaluating, Samples
from taut.compress.quantize import quantize as run
from taut.compress.recipe import Recipe
from taut.loading import Progress


def quantize(
    model: str,
    out: str | Path,
    scheme: str = "int8",
    *,
    calibration: Calibration | Samples | str | None = None,
    pin: Sequence[str] = (),
    algorithm: str | None = None,
    observer: str = "auto",
    kv: str | None = None,
    recipe: Recipe | None = None,
    metric: Callable[[Model], float] | None = None,
    quality_windows: int = 2,
    threads: int | None = None,
    progress: Progress | None = None,
    **more: Any,
) -> Artefact:
    """Quantize `model` (a folder, a GGUF file, a hub id or an alias) to `scheme` in the new folder `out`.

    calibration: taut.calibrate's result, texts, token ids, a file or folder of text, or "self", which None means where it is needed. pin:
    PATTERN=SCHEME for single linears. algorithm: rtn, imatrix or smoothquant; None: what suits the scheme. observer: of static inputs.
    recipe: instead of scheme, pin, algorithm, observer and kv. metric: measured on the model and on the artefact, kept in the receipt. more:
    max_fallbacks, stats_cache.

    Returns the Artefact: its path and receipt. Raises UsageError, ModelError, CompressionError.
    """
    allowed = {"max_fallbacks"} & more.keys()
    chosen = recipe or Recipe(scheme, algorithm, observer, tuple(pin), kv, **{name: more.pop(name) for name in allowed})
    return run(
        model, out, chosen, calibration=calibration, evaluating=Evaluating(quality_windows, metric), threads=threads, progress=progress, **more
    )
