"""`python -m taut.testing make NAME DIR`: write a random-weight checkpoint in an exact shape, without torch."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from taut.testing.models import NAMES, make


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m taut.testing", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("make", help="write a checkpoint folder with random weights")
    command.add_argument("name", choices=NAMES, metavar="NAME", help=", ".join(NAMES))
    command.add_argument("folder", type=Path, metavar="DIR")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument(
        "--dtype", choices=("bf16", "fp32"), default=None, help="default: bf16 for real shapes, fp32 for tiny ones"
    )
    options = parser.parse_args(argv)
    start = time.perf_counter()
    num_bytes = make(options.name, options.folder, seed=options.seed, dtype=options.dtype)
    print(f"{options.folder}: {options.name}, {num_bytes / 1e9:.3f} GB in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
