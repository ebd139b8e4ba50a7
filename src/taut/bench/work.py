"""What a step must do at least, and how long that takes on a given machine.

`of_limit` has one meaning everywhere: the larger of two floors, divided by the measured time.

    compute floor = linear MACs at the rate of their precision + attention MACs at the bf16 rate
    memory floor  = (packed weights + KV cache read once) / read bandwidth

The floors come from the Plan that runs, so a fused or a disabled pass changes nothing in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from taut.engine.batch import Batch
from taut.plan.plan import Plan, Step
from taut.plan.weights import LINEARS, WeightStore

ATTENTION = ("attention", "attention_full", "qkv_attention")


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates and bytes of one step. A plan may mix precisions: int8 and int4 linears run at the int8 rate, bf16
    ones at bf16's where the plan computes in it, others at fp32's."""

    int8_macs: int
    f32_macs: int
    attention_macs: int
    weight_bytes: int
    kv_bytes: int
    bf16_macs: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def count(plan: Plan, weights: WeightStore, batch: Batch, kv_bytes_per_token: float) -> Work:
    """The work of one run of `plan` on `batch`. Attention is counted without what a causal mask leaves out."""
    num = {"tokens": batch.num_tokens, "rows": batch.num_rows, "sequences": batch.num_sequences}
    lengths = np.diff(batch.starts).astype(np.int64)
    causal, full = int((batch.positions.astype(np.int64) + 1).sum()), int((lengths * lengths).sum())
    linear_macs, attention_macs, keys = {"int8": 0, "f32": 0, "bf16": 0}, 0, set[str]()
    for step in plan.steps:
        if step.op in LINEARS:
            out = step.outputs[0]
            columns = out.features * (3 if step.op == "qkv_attention" else 2 if step.attrs.get("gated") else 1)
            macs = step.inputs[0].features * columns * num[out.buffer.space]
            linear_macs[_arithmetic(step)] += macs
            keys.update(key for key in step.weights if key)
        if step.op in ATTENTION:
            pairs = causal if step.op == "attention" else full
            attention_macs += 2 * pairs * int(step.attrs["heads"]) * int(step.attrs["head_dim"])
    kv_bytes = int(batch.context.astype(np.int64).sum() * kv_bytes_per_token)
    weight_bytes = sum(weights[key].nbytes for key in keys)
    return Work(linear_macs["int8"], linear_macs["f32"], attention_macs, weight_bytes, kv_bytes, linear_macs["bf16"])


def _arithmetic(step: Step) -> str:
    """What a linear multiplies."""
    if step.op != "linear":
        return "int8"
    return "bf16" if step.attrs.get("bf16") else "f32"


def floor_s(work: Work, limits: Mapping[str, Any]) -> float:
    """The shortest time in which a machine of these limits (see bench/limits.py) can do the work."""
    int8_rate, f32_rate = float(limits["int8_tops"]) * 1e12, float(limits["fp32_tflops"]) * 1e12
    bf16_rate = max(float(limits["bf16_tflops"] or 0) * 1e12, f32_rate)
    bf16_macs = work.bf16_macs + work.attention_macs
    compute = 2 * (work.int8_macs / int8_rate + work.f32_macs / f32_rate + bf16_macs / bf16_rate)
    memory = (work.weight_bytes + work.kv_bytes) / (float(limits["read_gb_s"]) * 1e9)
    return max(compute, memory)
