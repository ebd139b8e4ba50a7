"""A streaming safetensors writer: one tensor's part in memory at a time, so a 1.7B model needs a few hundred MB.

The format: 8 bytes of header length (little endian), the JSON header padded with spaces to a multiple of 8, the tensors' bytes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.testing.shapes import Tensor

Dtype = Literal["bf16", "fp32"]
_BYTES = {"bf16": 2, "fp32": 4}
_NAMES = {"bf16": "BF16", "fp32": "F32"}
_PART = 1 << 20  # elements made at a time: they stay in the cache


def write(path: Path, tensors: Sequence[Tensor], *, seed: int, dtype: Dtype, strong: bool) -> int:
    """Write random values for `tensors` to a safetensors file; return its bytes.

    A tensor's values depend on `seed` and its name only. `strong` False: normal(0, 0.02) everywhere and norms of exactly 1,
    as a fresh model has. True: values of a trained model's size (linears of 1/sqrt(fan in), norms and biases spread), so that
    every part of the arithmetic changes the result: for comparing implementations.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tensor in tensors:
        num_bytes = math.prod(tensor.shape) * _BYTES[dtype]
        header[tensor.name] = {"dtype": _NAMES[dtype], "shape": tensor.shape, "data_offsets": (offset, offset + num_bytes)}
        offset += num_bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors:
            for part in _values(tensor, seed, strong):
                raw = part.astype(ml_dtypes.bfloat16).view(np.uint16) if dtype == "bf16" else part.view(np.uint32)
                file.write(raw.data)
    return 8 + len(text) + offset


def _values(tensor: Tensor, seed: int, strong: bool) -> Iterator[NDArray[np.float32]]:
    rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(tensor.name.encode())]))
    mean, deviation = _distribution(tensor, strong)
    size = math.prod(tensor.shape)
    for begin in range(0, size, _PART):
        part = rng.standard_normal(min(_PART, size - begin), dtype=np.float32)  # (part,)
        part *= np.float32(deviation)
        part += np.float32(mean)
        yield part


def _distribution(tensor: Tensor, strong: bool) -> tuple[float, float]:
    """Mean and standard deviation."""
    if not strong:
        return (1.0, 0.0) if tensor.kind == "norm" else (0.0, 0.02)
    if tensor.kind == "linear":
        return 0.0, tensor.shape[-1] ** -0.5
    return {"norm": (1.0, 0.1), "bias": (0.0, 0.1), "embedding": (0.0, 0.5)}[tensor.kind]
