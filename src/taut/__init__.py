"""taut: give it a transformer checkpoint; it quantizes, fuses, plans, batches and serves it at the machine's limit."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taut.api import Completion, Model, load
    from taut.compress.artefact import Artefact
    from taut.compress.calibrate import calibrate
    from taut.compress.evaluate import evaluate
    from taut.compress.interface import quantize

__version__ = "0.1.0"
__all__ = ["Artefact", "Completion", "Model", "__version__", "calibrate", "evaluate", "load", "quantize"]
_HOMES = {
    "load": "api", "Model": "api", "Completion": "api", "Artefact": "compress.artefact", "calibrate": "compress.calibrate",
    "evaluate": "compress.evaluate", "quantize": "compress.interface",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """The interface is imported on first use: `import taut` itself does no work."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"taut.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'taut' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
