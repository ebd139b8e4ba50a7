"""What a user chooses when a model is loaded. Small and frozen; everything else is derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taut.errors import UsageError

EXECUTORS = ("native", "reference")
ATTENTIONS = ("auto", "flash", "plain")
KV_PRECISIONS = ("fp32", "bf16", "int8", "k8v4")
PRECISIONS = ("int8", "int8-g64", "int4-g128", "int4-g64", "int4-g32", "w8a16", "fp16", "bf16", "fp32")
DEFAULT_PRECISION = "int8"


@dataclass(frozen=True)
class LoadConfig:
    """precision: int8, int8-g64 (weights and inputs in groups of 64), int4 in groups of 128, 64 or 32 inputs, w8a16 (int8 weights, float
    inputs), fp32, or fp16 and bf16 (weights of 16 bits); None is int8, or what an artefact was quantized to. pins: linear layers with a
    precision of their own, as "layers.*.down=fp16". kv_precision: of a decoder's KV cache, fp32, bf16, int8 or k8v4 (keys of int8, values
    of 4 bits); None: what an artefact asks for, int8 where the linear layers are of integers, else fp32. threads: None takes what the
    machine allows. memory_bytes: the budget for weights, KV cache and activations; None takes what the machine or its cgroup has free.
    max_context: shorter than the model's own limit. exact: results equal on every ISA bit for bit (all but bf16 are anyway, which otherwise
    multiplies in bf16 where AVX512_BF16 is there). attention: auto takes what was measured fastest for a row's position; flash and plain
    force one way for all rows (kernels/attention.py)."""

    precision: str | None = None
    threads: int | None = None
    memory_bytes: int | None = None
    max_context: int | None = None
    executor: str = "native"
    attention: str = "auto"
    disable_passes: Sequence[str] = ()
    pins: Sequence[str] = ()
    kv_precision: str | None = None
    exact: bool = False
    max_sequences: int = 16
    step_tokens: int = 512

    def __post_init__(self) -> None:
        faults = []
        if self.precision is not None and self.precision not in PRECISIONS:
            faults.append(f"precision {self.precision!r} is not one of {', '.join(PRECISIONS)}")
        if self.kv_precision not in (None, *KV_PRECISIONS):
            faults.append(f"kv_precision {self.kv_precision!r} is not one of {', '.join(KV_PRECISIONS)}")
        if self.executor not in EXECUTORS:
            faults.append(f"executor {self.executor!r} is not one of {', '.join(EXECUTORS)}")
        if self.attention not in ATTENTIONS:
            faults.append(f"attention {self.attention!r} is not one of {', '.join(ATTENTIONS)}")
        for name in ("threads", "memory_bytes", "max_context", "max_sequences", "step_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                faults.append(f"{name} must be an integer of at least 1, not {value!r}")
        for name in ("disable_passes", "pins"):
            if isinstance(getattr(self, name), str):
                faults.append(f"{name} must be a sequence of strings, not {getattr(self, name)!r}")
        if faults:
            raise UsageError("; ".join(faults))
