"""`python -m taut`: the command line, where the `taut` script is not on the path."""

from __future__ import annotations

from taut.cli.main import main

if __name__ == "__main__":
    main()
