"""`python -m taut.cli.bench_rung`: one run of `taut bench ladder`, in a process of its own. A spec on stdin, an answer on stdout."""

from __future__ import annotations

import json
import sys


def main() -> None:
    import taut
    from taut.bench.ladder import child
    from taut.errors import TautError

    spec = json.load(sys.stdin)
    try:
        answer = child.run(spec, taut.load)
    except TautError as error:
        answer = {"missing": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
