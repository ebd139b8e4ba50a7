"""The line that `taut --version` prints."""

from __future__ import annotations

import taut
from taut.errors import HardwareError


def version_line() -> str:
    """Version, whether the native core is there, and the instruction set that it runs."""
    from taut.kernels import native

    try:
        return f"taut {taut.__version__} · native · {native.select_isa()}"
    except HardwareError as error:
        return f"taut {taut.__version__} · reference executor only ({error})"
