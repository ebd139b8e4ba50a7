"""What a step must do at least, and how long that takes on a given machine.

`of_limit` has one meaning everywhere: the larger of two floors, divided by the measured time.

    compute floor = linear MACs at the rate of their precision + attention MACs at the bf16 rate
    memory floor  = (packed weights + KV cache read once) / read bandwidth

The floors come from the Plan that runs, so a fused or a disabled pass changes nothing in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from taut.engine.batch import Batch
from taut.plan.plan import Plan
from taut.plan.weights import LINEARS, WeightStore

ATTENTION = ("attention", "attention_full", "qkv_attention")


@dataclass(frozen=True)
class Work:
    """Multiply-accumulates and bytes of one step. A plan may mix precisions: int8 and int4 linears run at the int8 rate, others at fp32's."""

    int8_macs: int
    f32_macs: int
    attention_macs: int
    weight_bytes: int
    kv_bytes: int


def count(plan: Plan, weights: WeightStore, batch: Batch, kv_bytes_per_token: float) -> Work:
    """The work of one run of `plan` on `batch`. Attention is counted without what a causal mask leaves out."""
    num = {"tokens": batch.num_tokens, "rows": batch.num_rows, "sequences": batch.num_sequences}
    lengths = np.diff(batch.starts).astype(np.int64)
    causal, full = int((batch.positions.astype(np.int64) + 1).sum()), int((lengths * lengths).sum())
    int8_macs, f32_macs, attention_macs, keys = 0, 0, 0, set[str]()
    for step in plan.steps:
        if step.op in LINEARS:
            out = step.outputs[0]
            columns = out.features * (3 if step.op == "qkv_attention" else 2 if step.attrs.get("gated") else 1)
            macs = step.inputs[0].features * columns * num[out.buffer.space]
            int8_macs, f32_macs = (int8_macs, f32_macs + macs) if step.op == "linear" else (int8_macs + macs, f32_macs)
            keys.update(key for key in step.weights if key)
        if step.op in ATTENTION:
            pairs = causal if step.op == "attention" else full
            attention_macs += 2 * pairs * int(step.attrs["heads"]) * int(step.attrs["head_dim"])
    kv_bytes = int(batch.context.astype(np.int64).sum() * kv_bytes_per_token)
    return Work(int8_macs, f32_macs, attention_macs, sum(weights[key].nbytes for key in keys), kv_bytes)


def floor_s(work: Work, limits: Mapping[str, Any]) -> float:
    """The shortest time in which a machine of these limits (see bench/limits.py) can do the work."""
    int8_rate, f32_rate = float(limits["int8_tops"]) * 1e12, float(limits["fp32_tflops"]) * 1e12
    attention_rate = max(float(limits["bf16_tflops"] or 0) * 1e12, f32_rate)
    compute = 2 * (work.int8_macs / int8_rate + work.f32_macs / f32_rate + work.attention_macs / attention_rate)
    memory = (work.weight_bytes + work.kv_bytes) / (float(limits["read_gb_s"]) * 1e9)
    return max(compute, memory)
