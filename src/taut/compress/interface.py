"""taut.quantize: the Python face of compress/quantize.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from taut.api import Model
from taut.compress.artefact import Artefact
from taut.compress.calibration import Calibration
from taut.compress.quantize import Samples, Settings
from taut.compress.quantize import quantize as run
from taut.compress.recipe import Recipe
from taut.errors import UsageError

RECIPE = tuple(field.name for field in fields(Recipe) if field.name not in ("scheme", "pins"))
SETTINGS = tuple(field.name for field in fields(Settings) if field.name not in ("windows", "metric"))


def quantize(
    model: str,
    out: str | Path,
    scheme: str | Recipe = "int8",
    *,
    calibration: Calibration | Samples | str | None = None,
    pin: Sequence[str] = (),
    metric: Callable[[Model], float] | None = None,
    quality_windows: int = 2,
    **more: Any,
) -> Artefact:
    """Quantize `model` (a folder, a GGUF file, a hub id or an alias) into the new folder `out`.

    scheme: of the linear layers (quant/formats.py), or a whole Recipe. calibration: taut.calibrate's result, texts, token ids, a file or
    folder of text, or "self" (what the model writes); None: documentation and code of Python itself, where calibration is needed. pin:
    PATTERN=SCHEME for single linears. metric: measured on the model and on the artefact, and kept in the receipt. quality_windows: of
    held-out text in each domain; 0: quality is not measured. more: algorithm, observer, kv, max_fallbacks (compress/recipe.py);
    stats_cache, threads; progress(stage, done, total).

    Returns the Artefact: its path and receipt. Raises UsageError, ModelError, CompressionError.
    """
    progress = more.pop("progress", None)
    if unknown := sorted(more.keys() - {*RECIPE, *SETTINGS}):
        raise UsageError(
            f"quantize has no option {', '.join(unknown)}; accepted: {', '.join((*RECIPE, *SETTINGS, 'progress'))}"
        )
    options = {name: more.pop(name) for name in RECIPE if name in more}
    if isinstance(scheme, Recipe) and (options or pin):
        raise UsageError("a Recipe says all of scheme, pin, algorithm, observer, kv and max_fallbacks; give those in it")
    recipe = scheme if isinstance(scheme, Recipe) else Recipe(scheme, pins=tuple(pin), **options)
    settings = Settings(windows=quality_windows, metric=metric, **more)
    return run(model, out, recipe, calibration=calibration, settings=settings, progress=progress)
