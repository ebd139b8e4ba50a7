"""The line that `taut --version` prints."""

from __future__ import annotations

import taut
from taut.errors import TautError


def version_line() -> str:
    """Version, instruction set in use, and whether the native core is there."""
    try:
        from taut.engine.runtime import runtime

        machine = runtime(None)
    except (ImportError, TautError) as error:
        return f"taut {taut.__version__} · reference executor only ({error})"
    return f"taut {taut.__version__} · native · {machine.isa}"
