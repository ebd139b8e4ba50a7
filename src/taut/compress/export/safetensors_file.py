"""Writes one safetensors file, a tensor at a time: 8 bytes of header length, the JSON header, the tensors' bytes in its order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taut.checkpoint.tensors import SAFETENSORS_DTYPES

Spec = tuple[np.dtype[Any], tuple[int, ...]]
_NAMES = {dtype: name for name, dtype in SAFETENSORS_DTYPES.items()}


def write(path: Path, specs: Mapping[str, Spec], read: Callable[[str], NDArray[Any]]) -> None:
    """`read(name)` gives the array that `specs[name]` = (dtype, shape) announced; called in their order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape) in specs.items():
        end = offset + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (dtype, shape) in specs.items():
            array = np.ascontiguousarray(read(name))
            assert (array.dtype, array.shape) == (dtype, shape), f"{name} is {array.dtype}{array.shape}, not {dtype}{shape}"
            file.write(array.reshape(-1).view(np.uint8).data)
