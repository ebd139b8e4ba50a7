"""From nothing to a model that answers: first load, and loads out of the packed cache, beside a plain parallel read of as many bytes.

    python bench/startup.py MODEL [--precision int8] [--repeats 5] [--json FILE]

Every load is a process of its own; `ready_s` counts from its start, interpreter and imports included. `of_limit` is (plain read of the
packed bytes into huge pages + FIXED_S) / ready_s: the files are in the system's cache for both. Modules are compiled beforehand, as an
installation has them, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from taut.engine.runtime import runtime

FIXED_S = 0.7  # interpreter, imports, tokenizer, plan

LOAD = """
import json, sys, time
begun = float(sys.argv[1])
import taut
imported = time.time()
model = taut.load(sys.argv[2], precision=sys.argv[3])
loaded = time.time()
if model.kind == "decoder":
    model.generate([5, 6, 7], max_tokens=1)
else:
    model.embed(["a"])
print(json.dumps({"imports_s": imported - begun, "load_s": loaded - imported, "ready_s": time.time() - begun,
                  "weight_bytes": model.describe()["memory"]["weight_bytes"]}))
"""

PLAIN = """
import json, os, sys, threading, time
from taut.engine.runtime import runtime
machine = runtime()
size = os.path.getsize(sys.argv[1])
begun = time.perf_counter()
array = machine.allocate(size)
file = os.open(sys.argv[1], os.O_RDONLY)
part = -(-size // machine.threads // 4096) * 4096
def read(begin):
    view = memoryview(array[begin : begin + part])
    while view:
        got = os.preadv(file, [view[: 8 << 20]], begin)
        begin, view = begin + got, view[got:]
threads = [threading.Thread(target=read, args=(begin,)) for begin in range(0, size, part)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(time.perf_counter() - begun))
"""


def run(script: str, *arguments: str, cache: Path | str, compiled: Path) -> Any:
    command = [sys.executable, "-c", script, *arguments]
    environment = {**os.environ, "TAUT_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(compiled)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def load(model: str, precision: str, cache: Path | str, compiled: Path) -> dict[str, float]:
    result: dict[str, float] = run(LOAD, str(time.time()), model, precision, cache=cache, compiled=compiled)
    return result


def median_of(results: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(result[name] for result in results), 3) for name in results[0]}


def measure(model: str, precision: str, repeats: int, folder: Path) -> dict[str, Any]:
    compiled = folder / "compiled"
    load(model, precision, folder, compiled)  # writes the entry before its process ends, and the modules
    packed = [load(model, precision, "off", compiled) for _ in range(repeats)]
    entries = list(folder.glob("*.taut"))
    result: dict[str, Any] = {"packed": median_of(packed)}
    if not entries:
        return {**result, "kept": None, "reason": "the model is too small to be kept, or the disk too full"}
    plain, kept, shares = [], [], []
    for _ in range(repeats):
        plain.append(run(PLAIN, str(entries[0]), cache="off", compiled=compiled))
        kept.append(load(model, precision, folder, compiled))
        shares.append((plain[-1] + FIXED_S) / kept[-1]["ready_s"])
    result |= {"kept": median_of(kept), "file_bytes": entries[0].stat().st_size}
    result |= {"plain_read_s": round(statistics.median(plain), 3), "of_limit": round(statistics.median(shares), 3)}
    result["times_the_limit"] = round(1 / result["of_limit"], 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the cache is made; default a temporary folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        result = measure(options.model, options.precision, options.repeats, Path(folder))
    machine = runtime()
    record = {
        "model": options.model,
        "precision": options.precision,
        "isa": machine.isa,
        "threads": machine.threads,
        "fixed_s": FIXED_S,
        **result,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
