"""What a stored tensor is, and which element types a file may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

MAX_DIMS = 8
MAX_BYTES = 1 << 62


@dataclass(frozen=True)
class TensorInfo:
    """Shape (row major), element type as stored ("float32", "bfloat16", "q4_1", …) and the bytes it takes in the file."""

    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class TensorSource(Protocol):
    """One checkpoint's tensors, whatever the file format."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...

    def read(self, name: str) -> Any: ...

    def identity(self) -> str:
        """A hash of the files' sizes, times of change and samples of their bytes, equal wherever the files lie."""

    def release_pages(self) -> None:
        """Drop file pages read so far from resident memory."""

    def close(self) -> None: ...


# safetensors' names; the numpy name is what TensorInfo.dtype holds.
SAFETENSORS_DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
