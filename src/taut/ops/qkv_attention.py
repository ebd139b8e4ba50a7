"""qkv_attention: attention_full over queries, keys and values that a quantized linear makes of one value; fused.

The weight holds `interleave` rows of q, k and v in turn. Attrs: attention_full's, group (of the input and an int4 weight), bits (8 or 4),
weight_group (of an int8 weight, 0: by row).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from taut.ops import attention_full, linear_q4, linear_q8
from taut.ops.base import Array, Attrs, Context, Signature, need


def infer(inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]:
    (qkv,) = _linear(attrs).infer(inputs, weights, _groups(attrs))
    width, interleave = qkv.features // 3, int(attrs["interleave"])
    need(
        qkv.features % (3 * interleave) == 0, f"qkv_attention: {qkv.features} rows are not q, k and v in turns of {interleave}"
    )
    return attention_full.infer([Signature(width, qkv.space)] * 3, (), attrs)


def run(inputs: Sequence[Any], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]:
    (qkv,) = _linear(attrs).run(inputs, weights, _groups(attrs), context)
    turns = qkv.reshape(len(qkv), -1, 3, int(attrs["interleave"]))  # (tokens, turns, q k v, columns)
    parts = [np.ascontiguousarray(turns[:, :, i]).reshape(len(qkv), -1) for i in range(3)]
    return attention_full.run(parts, (), attrs, context)


def _groups(attrs: Attrs) -> Attrs:
    return {"group": attrs["group"], "weight_group": attrs.get("weight_group", 0)}


def _linear(attrs: Attrs) -> Any:
    return linear_q8 if attrs["bits"] == 8 else linear_q4
