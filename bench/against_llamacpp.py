"""taut and llama.cpp alternately on the same weights; the ratios and both engines' figures as one record.

    python bench/against_llamacpp.py --peer-python PEER/bin/python [--model smollm2-1.7b] [--rounds 3]

PEER is an environment with llama-cpp-python. Each engine has its own process, so the memory figures are theirs alone; an engine
runs twice per round in the order A B B A, so that a drifting machine favours neither.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from taut.bench import report
from taut.testing import make

HERE = Path(__file__).parent
MODELS = HERE.parent / ".models"
TAUT = str(Path(sys.executable).with_name("taut"))


def last_json(command: list[str]) -> dict[str, Any]:
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    result: dict[str, Any] = json.loads(output[output.index("{") :])
    return result


def prepared(name: str) -> tuple[Path, Path]:
    """(folder, Q8_0 GGUF) of a random-weight model, made on first use."""
    folder, file = MODELS / name, MODELS / f"{name}.q8_0.gguf"
    if not (folder / "model.safetensors").exists():
        make(name, folder)
    if not file.exists():
        subprocess.run([sys.executable, str(HERE / "to_gguf.py"), str(folder), str(file)], check=True)
    return folder, file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--model", default="smollm2-1.7b", choices=("smollm2-1.7b", "smollm2-135m-shape"))
    for name, default in (("prompt", 512), ("gen", 32), ("batch", 1), ("threads", 2), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    folder, file = prepared(options.model)
    load = [f"--{name}={getattr(options, name)}" for name in ("prompt", "gen", "batch")]
    ours = [TAUT, "bench", "latency", str(folder), "--precision=int8", "--json", f"--threads={options.threads}", *load]
    theirs = [options.peer_python, str(HERE / "peers" / "llamacpp.py"), str(file), f"--threads={options.threads}", *load]
    taut: list[dict[str, Any]] = []
    peer: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        for command, results in ((ours, taut), (theirs, peer), (theirs, peer), (ours, taut)):
            results.append(last_json(command))
            print(
                json.dumps(
                    {k: v for k, v in results[-1].items() if k in ("system", "prefill_tokens_per_s", "decode_ms", "rss_bytes")}
                )
            )
    pairs = list(zip(taut, peer, strict=True))
    result = {
        "load": {name: getattr(options, name) for name in ("prompt", "gen", "batch", "threads")},
        "ratio": {
            "prefill": statistics.median(a["prefill_tokens_per_s"] / b["prefill_tokens_per_s"] for a, b in pairs),
            "decode": statistics.median(b["decode_ms"] / a["decode_ms"] for a, b in pairs),
            "rss": statistics.median(a["rss_bytes"] / b["rss_bytes"] for a, b in pairs),
        },
        "taut": taut,
        "llama.cpp": peer,
    }
    print(json.dumps(result["ratio"]))
    name = f"against-llamacpp-{options.model}-b{options.batch}"
    print(report.save(HERE / "records", name, f"bench/against_llamacpp.py --model {options.model}", result))


if __name__ == "__main__":
    main()
