"""One run of one system, in the interpreter that has it: `PYTHON worker.py find|prepare|measure < spec.json`. The last line is the answer.

{"missing": reason} when the system is not installed or cannot run the model: that is no error.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path


def main() -> None:
    verb, spec = sys.argv[1], json.load(sys.stdin)
    module = importlib.import_module(f"systems.{spec['system']}")
    absent = [name for name in module.NEEDS[spec["work"]] if not is_there(name)]
    if absent:
        answer = {"missing": f"not installed: {', '.join(absent)}"}
    elif verb == "find":
        answer = {}
    elif verb == "prepare":
        module.prepare(spec)
        answer = {}
    else:
        answer = module.measure(spec)
    print(json.dumps(answer), flush=True)


def is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # not even its parent
        return False


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
