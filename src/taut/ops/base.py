"""What all ops share: signatures, the execution context and the lookup by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Space = Literal["tokens", "rows", "sequences"]
Attrs = Mapping[str, Any]
Array = NDArray[Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Signature:
    """Shape of a value: `features` columns for each unit of `space`. dtype q8 is a quantized row; kv orders cache accesses."""

    features: int
    space: Space = "tokens"
    dtype: Literal["f32", "q8", "kv"] = "f32"


class KVAccess(Protocol):
    """The cache as the reference sees it: float32 keys and values as stored (after the cache's own rounding)."""

    def write(self, layer: int, table: Array, positions: Array, k: Floats, v: Floats) -> None: ...

    def read(self, layer: int, table: Array, length: int) -> tuple[Floats, Floats]: ...


@dataclass(frozen=True)
class Context:
    """The batch's arrays (see engine/batch.py) and the KV cache."""

    ids: Array
    positions: Array
    types: Array
    starts: Array
    context: Array
    tables: Array
    rows: Array
    kv: KVAccess | None


class OpModule(Protocol):
    def infer(self, inputs: Sequence[Signature], weights: Sequence[tuple[int, ...]], attrs: Attrs) -> list[Signature]: ...

    def run(self, inputs: Sequence[Array], weights: Sequence[Any], attrs: Attrs, context: Context) -> list[Array]: ...


@cache
def find(op: str) -> OpModule:
    """The module of an op; KeyError for a name that has no file, while an error inside the file passes through."""
    name = f"taut.ops.{op}"
    try:
        return cast(OpModule, importlib.import_module(name))
    except ModuleNotFoundError as error:
        if error.name == name:
            raise KeyError(f"no op named {op!r}") from None
        raise


def round_bf16(x: Array) -> Floats:
    """The nearest bfloat16 of every value, ties to even, as float32."""
    rounded: Floats = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return rounded


def need(condition: bool, message: str) -> None:
    """Raise ValueError when a shape rule does not hold."""
    if not condition:
        raise ValueError(message)
