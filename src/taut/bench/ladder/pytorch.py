"""The encoder ladder's lowest rung: the model as transformers runs it, fp32, eager mode. Run as a script by an interpreter that has torch
and transformers, which taut does not need and never imports; so this file imports nothing of taut, and them by name.

    PEER/bin/python pytorch.py < spec.json      spec and answer as in child.py
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

NEEDED = ("torch", "transformers", "numpy")


def main() -> None:
    spec = json.load(sys.stdin)
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        print(json.dumps({"missing": f"not installed: {', '.join(absent)} (--peer-python PYTHON gives another interpreter)"}))
    else:
        print(json.dumps(_measure(spec)))


def _measure(spec: Mapping[str, Any]) -> dict[str, Any]:
    # Its threads otherwise spin at every barrier: 50 times slower on a small model when anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    torch, np = importlib.import_module("torch"), importlib.import_module("numpy")
    transformers = importlib.import_module("transformers")
    threads = spec["options"]["threads"] or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    before, start = _rss_bytes(), time.perf_counter()
    model = transformers.AutoModel.from_pretrained(spec["model"], dtype=torch.float32).eval()
    load_s, load = time.perf_counter() - start, spec["load"]
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, model.config.vocab_size, (load["batch"], load["length"])))
    with torch.inference_mode():
        for _ in range(2):
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
        repetitions = [{"batches_s": _burst(model, ids, load["least"], torch)} for _ in range(load["reps"])]
        rss = _rss_bytes()
        quality = _quality(spec, model, torch, np)
    return {
        "system": f"PyTorch {torch.__version__}, transformers {transformers.__version__}",
        "repetitions": repetitions,
        "rss_before_bytes": before,
        "rss_bytes": rss,
        "load_s": load_s,
        "threads": threads,
        "quality": quality,
    }


def _burst(model: Any, ids: Any, least: int, torch: Any) -> list[float]:
    """Seconds of each batch, for about a second and at least `least` batches, as taut's own runs do it."""
    times: list[float] = []
    while len(times) < least or sum(times) < 1.0:
        start = time.perf_counter()
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
        times.append(time.perf_counter() - start)
    return times


def _quality(spec: Mapping[str, Any], model: Any, torch: Any, np: Any) -> dict[str, Any] | None:
    """Cosines to taut's fp32 embeddings, pooled as the model's folder says."""
    if not spec["texts"]:
        return None
    found = []
    with np.load(spec["reference"]) as saved:
        for i in range(spec["texts"]):
            ids = torch.from_numpy(saved[f"ids{i}"].astype(np.int64))[None]
            rows = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            pooled = {"mean": rows.mean(0), "cls": rows[0], "last": rows[-1], "max": rows.max(0).values}[
                spec["pooling"]
            ].numpy()
            wanted = saved[f"answer{i}"]
            found.append(float(pooled @ wanted / (np.linalg.norm(pooled) * np.linalg.norm(wanted))))
    return {"texts": len(found), "mean_cosine": sum(found) / len(found), "least_cosine": min(found)}


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
