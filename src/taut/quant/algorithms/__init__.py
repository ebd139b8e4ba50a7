"""Algorithms: which numbers a scheme's weights get. Arrays in, arrays out; `quantize` is the one verb.

rtn          round to nearest: the range of a row or a group decides
imatrix      the scale that loses least in the layer's output, inputs weighed by how large they are in use
smoothquant  moves the size of inputs into the weights first (smoothquant.py), then rounds to nearest
"""

from __future__ import annotations

from typing import Literal, get_args

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from taut.errors import ModelFormatError, UsageError
from taut.quant.algorithms import imatrix, rtn
from taut.quant.formats import SCHEMES
from taut.quant.schemes import int4, int8

Algorithm = Literal["rtn", "imatrix", "smoothquant"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

Weight = int8.Quantized | int4.Quantized | NDArray[np.generic]  # a weight in a scheme's numbers: an array where it is a float's


def quantize(
    w: NDArray[np.floating],
    scheme: str,
    *,
    importance: NDArray[np.floating] | None = None,
    algorithm: Algorithm = "rtn",
    symmetric: bool = False,
    clip: bool = True,
    name: str = "",
) -> Weight:
    """`w` (N, K) in the numbers of `scheme` (formats.SCHEMES), which must fit K (formats.fitting).

    `importance` (K,): the mean square of each input, for imatrix. `symmetric`: int4 with a minimum of -8 scales. `clip=False`: for q and k
    of models with rotary positions, whose largest weights the search must not cut. A w8a16 weight is int8 by output channel, as that
    of int8 and int8-static. Raises UsageError for what is unknown or does not fit, ModelFormatError (naming `name`) for weights that are not
    finite, or not in the scheme's range.
    """
    if scheme not in SCHEMES:
        raise UsageError(f"unknown scheme {scheme!r}; accepted are {', '.join(SCHEMES)}")
    if algorithm not in ALGORITHMS:
        raise UsageError(f"unknown algorithm {algorithm!r}; accepted are {', '.join(ALGORITHMS)}")
    format_ = SCHEMES[scheme]
    if format_.group and w.shape[1] % format_.group:
        raise UsageError(
            f"{name or 'a weight'} has {w.shape[1]} inputs, which groups of {format_.group} do not divide; ask formats.fitting for its scheme"
        )
    if symmetric and format_.weight != "int4":
        raise UsageError(f"symmetric is a choice of int4; weights of {scheme} are symmetric always, or floats")
    if format_.weight == "int4":
        if algorithm == "imatrix":
            return imatrix.int4_weight(w, format_.group, importance, symmetric=symmetric, clip=clip, name=name)
        return rtn.int4_weight(w, format_.group, symmetric=symmetric, name=name)
    if format_.weight in ("int8", "i8"):
        if algorithm == "imatrix":
            return imatrix.int8_weight(w, format_.group, importance, clip=clip, name=name)
        return int8.quantize_groups(w, format_.group, name=name)
    return _rounded(w, scheme, name)


def dequantize(weight: Weight) -> NDArray[np.float32]:
    """What `weight` stands for, (N, K) float32."""
    if isinstance(weight, int8.Quantized):
        return weight.dequantized()
    if isinstance(weight, int4.Quantized):
        return int4.dequantize(weight)
    return weight.astype(np.float32)


_FLOATS: dict[str, type] = {"fp32": np.float32, "fp16": np.float16, "bf16": ml_dtypes.bfloat16}


def _rounded(w: NDArray[np.floating], scheme: str, name: str) -> NDArray[np.generic]:
    w32, absmax = int8.finite_rows(w, name)
    with np.errstate(over="ignore"):
        narrow: NDArray[np.generic] = w32.astype(_FLOATS[scheme])
    if bad := int(np.count_nonzero(~np.isfinite(narrow.astype(np.float32)))):
        raise ModelFormatError(
            f"{bad:,} weights do not fit {scheme} (the largest is {absmax.max():.3g}); give this layer bf16 or fp32 (--pin)",
            field=name,
        )
    return narrow
