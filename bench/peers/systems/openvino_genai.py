"""OpenVINO GenAI: its continuous batching pipeline, weights compressed by NNCF at export, activations quantized in groups of 128.

Prefill lasts until every prompt has its first token; each further step of the pipeline is a decode step.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from common import Loading, Result, Spec, answer, converted, decoder

NEEDS = {"decoder": ("openvino", "openvino_genai", "optimum.intel", "nncf", "torch")}
VARIANTS = {"decoder": ("int8", "int4")}


def prepare(spec: Spec) -> None:
    """optimum-intel's exporter, in a process of its own: it takes much memory."""
    out = converted(spec, f"openvino-{spec['variant']}")
    if (out / "openvino_model.xml").exists():
        return
    narrow = ["--group-size", str(_group(spec)), "--ratio", "1.0"] if spec["variant"] == "int4" else []
    export = ["export", "openvino", "-m", spec["model"], "--task", "text-generation-with-past"]
    command = [sys.executable, "-c", "from optimum.commands.optimum_cli import main; main()", *export]
    subprocess.run([*command, "--weight-format", spec["variant"], *narrow, str(out)], check=True, stdout=sys.stderr)


def _group(spec: Spec) -> int:
    """128, or what divides every input of a small model."""
    config = json.loads((Path(spec["model"]) / "config.json").read_text(encoding="utf-8"))
    return next((g for g in (128, 64, 32) if all(config[key] % g == 0 for key in ("hidden_size", "intermediate_size"))), -1)


def measure(spec: Spec) -> Result:
    import openvino as ov
    import openvino_genai as genai

    folder = converted(spec, f"openvino-{spec['variant']}")
    loading = Loading()
    settings = genai.SchedulerConfig()
    config = json.loads((Path(spec["model"]) / "config.json").read_text(encoding="utf-8"))
    settings.cache_size = _cache_gb(config, spec)
    settings.max_num_batched_tokens, settings.enable_prefix_caching = 4096, False
    device = {"INFERENCE_NUM_THREADS": spec["threads"], "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128}
    pipe = genai.ContinuousBatchingPipeline(str(folder), settings, "CPU", device)
    head = loading.done(f"OpenVINO GenAI {genai.__version__}")

    def generate(prompts: np.ndarray, gen: int) -> tuple[float, list[float]]:
        how = genai.GenerationConfig()
        how.max_new_tokens, how.ignore_eos, how.do_sample = 1 + gen, True, False
        start = time.perf_counter()
        waiting = [pipe.add_request(i, ov.Tensor(row[None].astype(np.int64)), how) for i, row in enumerate(prompts)]
        while waiting:  # a step may hold a part of the prompts
            pipe.step()
            waiting = [handle for handle in waiting if not handle.can_read()]
        times = [time.perf_counter()]
        while pipe.has_non_finished_requests():
            pipe.step()
            times.append(time.perf_counter())
        return times[0] - start, [after - before for before, after in itertools.pairwise(times)]

    result = {**head, **decoder(spec, generate), "file_bytes": (folder / "openvino_model.bin").stat().st_size}
    if spec.get("answers"):
        del pipe
        answer(spec, _logits(folder, spec))
    return result


def _cache_gb(config: dict[str, int], spec: Spec) -> int:
    """Whole GB of keys and values, 16 bits each, with room for blocks begun."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    token = 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim
    return 1 + int(token * spec["batch"] * (spec["prompt"] + spec["gen"] + 64) / 1e9)


def _logits(folder: Path, spec: Spec) -> Callable[[np.ndarray], np.ndarray]:
    """The exported model run alone, which gives logits of every position where the pipeline gives the last one's."""
    import openvino as ov

    device = {"INFERENCE_NUM_THREADS": spec["threads"], "DYNAMIC_QUANTIZATION_GROUP_SIZE": 128}
    request = ov.Core().compile_model(str(folder / "openvino_model.xml"), "CPU", device).create_infer_request()
    names = {name for port in request.model_inputs for name in port.names}

    def logits(ids: np.ndarray) -> np.ndarray:
        request.reset_state()
        positions = np.arange(len(ids), dtype=np.int64)[None]
        feeds = {"input_ids": ids[None], "attention_mask": np.ones_like(positions), "position_ids": positions}
        feeds["beam_idx"] = np.zeros(1, np.int32)
        found: np.ndarray = request.infer({name: value for name, value in feeds.items() if name in names})["logits"][0]
        return found

    return logits
