"""llama.cpp on one GGUF through llama-cpp-python: the same load as `taut bench latency`, one JSON line.

Run by the interpreter that has llama-cpp-python (built from source there, so with this processor's instructions):

    PEER/bin/python bench/peers/llamacpp.py MODEL.gguf --prompt 512 --gen 32 --batch 1 --threads 2
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from typing import Any

import llama_cpp
import numpy as np


def context(options: argparse.Namespace) -> Any:
    llama_cpp.llama_backend_init()
    # Silence: the only line on stdout is the result.
    quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
    model_options = llama_cpp.llama_model_default_params()
    model_options.use_extra_bufts = not options.no_repack
    model = llama_cpp.llama_model_load_from_file(options.model.encode(), model_options)
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = (options.prompt + options.gen) * options.batch + 64  # no more cache than the load needs
    settings.n_batch, settings.n_ubatch = 2048, 512
    settings.n_threads = settings.n_threads_batch = options.threads
    settings.n_seq_max = options.batch
    settings.flash_attn_type = 1
    return llama_cpp.llama_init_from_model(model, settings), quiet


def step(ctx: Any, tokens: np.ndarray, positions: list[int], sequences: list[int], *, last_only: bool) -> float:
    """Seconds of one llama_decode."""
    count = len(tokens)
    batch = llama_cpp.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for i in range(count):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(tokens[i]), positions[i], 1
        batch.seq_id[i][0] = sequences[i]
        batch.logits[i] = int(i == count - 1 or not last_only)
    start = time.perf_counter()
    status = llama_cpp.llama_decode(ctx, batch)
    llama_cpp.llama_synchronize(ctx)
    seconds = time.perf_counter() - start
    llama_cpp.llama_batch_free(batch)
    if status:
        raise SystemExit(f"llama_decode failed with {status}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for name, default in (("prompt", 512), ("gen", 32), ("batch", 1), ("threads", 2), ("reps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-repack", action="store_true", help="keep the file's layout: its tiled kernels for k-quants")
    options = parser.parse_args()
    start = time.perf_counter()
    ctx, _keep = context(options)
    load_s = time.perf_counter() - start
    rng = np.random.default_rng(0)
    prefill, decode = [], []
    for repetition in range(options.reps + 1):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
        prefill_s = 0.0
        for sequence in range(options.batch):
            ids = rng.integers(100, 40000, options.prompt)
            prefill_s += step(ctx, ids, list(range(options.prompt)), [sequence] * options.prompt, last_only=True)
        everyone = list(range(options.batch))
        steps = [
            step(ctx, rng.integers(100, 40000, options.batch), [options.prompt + i] * options.batch, everyone, last_only=False)
            for i in range(options.gen)
        ]
        if repetition:  # the first one warms up
            prefill.append(prefill_s)
            decode.append(statistics.median(steps))
    with open("/proc/self/statm", encoding="ascii") as statm:
        rss_bytes = int(statm.read().split()[1]) * 4096
    result = {
        "system": f"llama.cpp (llama-cpp-python {llama_cpp.__version__})",
        "prefill_tokens_per_s": options.batch * options.prompt / statistics.median(prefill),
        "decode_ms": 1e3 * statistics.median(decode),
        "rss_bytes": rss_bytes,
        "load_s": load_s,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
