"""llama.cpp through llama-cpp-python (built from source, so with this processor's instructions). Formats by its own quantizer.

By default it repacks 4-bit weights for its older tiled kernels where it can; `+no-repack` keeps the file's layout.
"""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import Loading, Result, Spec, answer, converted, decoder

NEEDS = {"decoder": ("llama_cpp", "numpy")}
VARIANTS = {"decoder": ("q8_0", "q4_0", "q4_k_m", "q4_k_m+no-repack")}


def prepare(spec: Spec) -> None:
    """Quantizes the unquantized GGUF that run.py has written."""
    import llama_cpp

    out = _file(spec)
    if out.exists():
        return
    _quiet(llama_cpp)
    how = llama_cpp.llama_model_quantize_default_params()
    kind = spec["variant"].partition("+")[0]
    how.ftype = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + {"q4_k_m": "Q4_K_M"}.get(kind, kind.upper()))
    how.nthread = spec["threads"]
    part = out.with_suffix(".part")
    status = llama_cpp.llama_model_quantize(spec["gguf"].encode(), str(part).encode(), ctypes.byref(how))
    if status:
        raise SystemExit(f"llama_model_quantize failed with {status}")
    part.rename(out)


def measure(spec: Spec) -> Result:
    import llama_cpp

    _quiet(llama_cpp)
    loading = Loading()
    session = _Session(llama_cpp, spec)
    head = loading.done(f"llama.cpp (llama-cpp-python {llama_cpp.__version__})")
    result = {**head, **decoder(spec, session.generate), "file_bytes": _file(spec).stat().st_size}
    answer(spec, session.logits)
    return result


def _file(spec: Spec) -> Path:
    return converted(spec, f"{spec['variant'].partition('+')[0]}.gguf")


_KEEP: list[Any] = []


def _quiet(llama_cpp: Any) -> None:
    llama_cpp.llama_backend_init()
    _KEEP.append(llama_cpp.llama_log_callback(lambda level, text, data: None))
    llama_cpp.llama_log_set(_KEEP[-1], ctypes.c_void_p())


class _Session:
    def __init__(self, llama_cpp: Any, spec: Spec) -> None:
        self.c, self.vocab_size = llama_cpp, spec["vocab_size"]
        options = llama_cpp.llama_model_default_params()
        options.use_extra_bufts = not spec["variant"].endswith("+no-repack")
        model = llama_cpp.llama_model_load_from_file(str(_file(spec)).encode(), options)
        settings = llama_cpp.llama_context_default_params()
        longest = max([spec["prompt"] + spec["gen"], *(len(ids) for ids in spec.get("quality_ids") or ())])
        settings.n_ctx = longest * spec["batch"] + 64  # no more cache than the load needs
        settings.n_batch, settings.n_ubatch = 2048, 512
        settings.n_threads = settings.n_threads_batch = spec["threads"]
        settings.n_seq_max = spec["batch"]
        settings.flash_attn_type = 1
        self.context = llama_cpp.llama_init_from_model(model, settings)

    def generate(self, prompts: np.ndarray, gen: int) -> tuple[float, list[float]]:
        self._clear()
        batch, length = prompts.shape
        everyone, prefill_s = list(range(batch)), 0.0
        for sequence, ids in enumerate(prompts):
            prefill_s += self._step(ids, list(range(length)), [sequence] * length, last_only=True)
        return prefill_s, [
            self._step(prompts[:, i % length], [length + i] * batch, everyone, last_only=False) for i in range(gen)
        ]

    def logits(self, ids: np.ndarray) -> np.ndarray:
        self._clear()
        self._step(ids, list(range(len(ids))), [0] * len(ids), last_only=False)
        held = np.ctypeslib.as_array(self.c.llama_get_logits(self.context), shape=(len(ids), self.vocab_size))
        return np.array(held)

    def _clear(self) -> None:
        self.c.llama_memory_clear(self.c.llama_get_memory(self.context), True)

    def _step(self, tokens: np.ndarray, positions: list[int], sequences: list[int], *, last_only: bool) -> float:
        """Seconds of one llama_decode."""
        count = len(tokens)
        batch = self.c.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(tokens[i]), positions[i], 1
            batch.seq_id[i][0] = sequences[i]
            batch.logits[i] = int(i == count - 1 or not last_only)
        start = time.perf_counter()
        status = self.c.llama_decode(self.context, batch)
        self.c.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        self.c.llama_batch_free(batch)
        if status:
            raise SystemExit(f"llama_decode failed with {status}")
        return seconds
