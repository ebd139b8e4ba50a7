"""taut: give it a transformer checkpoint; it quantizes, fuses, plans, batches and serves it at the machine's limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from taut.api import Completion, Model, load
    from taut.compress.evaluate import evaluate

__version__ = "0.1.0"
__all__ = ["Completion", "Model", "__version__", "evaluate", "load"]


def __getattr__(name: str) -> Any:
    """The interface is imported on first use: `import taut` itself does no work."""
    if name in ("load", "Model", "Completion"):
        from taut import api

        return getattr(api, name)
    if name == "evaluate":
        from taut.compress import evaluate as module

        return module.evaluate
    raise AttributeError(f"module 'taut' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
