"""The native weight packer against the numpy one, bit for bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from native_q8.harness import ISAS
from taut.errors import ModelFormatError
from taut.kernels import native
from taut.quant.schemes import int8

pytestmark = [pytest.mark.native, pytest.mark.skipif(not ISAS, reason="the native core is not built")]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


def buffers(n: int, k: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    shape = int8.packed_shape(n, k)
    return np.zeros(shape, np.uint8), np.full(shape[0] * 64, np.nan, np.float32)


def weight(n: int, k: int, dtype: Any) -> NDArray[Any]:
    rng = np.random.default_rng(n * k)
    w = rng.standard_normal((n, k)) * rng.lognormal(0, 2, (n, 1))
    w[n // 2] = 0
    w[0, 0] = 6e-8  # subnormal as float16
    return w.astype(np.float32).clip(-60000, 60000).astype(dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize(("n", "k"), [(64, 256), (1, 4), (130, 576), (65, 30), (33, 1000), (70, 7)])
def test_equals_numpy(isa: str, dtype: Any, n: int, k: int) -> None:
    w = weight(n, k, dtype)
    data, scale = buffers(n, k)
    source = native.SOURCES[np.dtype(dtype).name]
    native.module().pack(w if source == "f32" else w.view(np.uint16), source, data, scale, isa=isa)
    expected, expected_scale = int8.pack(*int8.quantize_weight(w))
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(scale.view(np.int32), expected_scale.view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_every_half_is_read_exactly(isa: str) -> None:
    finite = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    finite = finite[np.isfinite(finite)]
    w = finite[: len(finite) // 64 * 64].reshape(-1, 64)
    data, scale = buffers(*w.shape)
    native.module().pack(w.view(np.uint16), "f16", data, scale, isa=isa)
    expected, expected_scale = int8.pack(*int8.quantize_weight(w))
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(scale, expected_scale)


def test_strided_rows_and_threads() -> None:
    whole = weight(200, 300, np.float32)
    w = whole[:, 20:276]
    data, scale = buffers(*w.shape)
    native.pack_q8(w, data, scale, "w", native.thread_pool(2))
    expected, expected_scale = int8.pack(*int8.quantize_weight(w))
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(scale, expected_scale)


def test_columns_apart_and_other_dtypes_are_converted() -> None:
    w = weight(70, 64, np.float32).astype(np.float64).T
    data, scale = buffers(*w.shape)
    native.pack_q8(w, data, scale, "w")
    expected, _ = int8.pack(*int8.quantize_weight(w))
    np.testing.assert_array_equal(data, expected)


def test_panels_one_by_one() -> None:
    w = weight(150, 64, np.float32)
    data, scale = buffers(150, 64)
    native.module().pack(w, "f32", data, scale, panel_begin=1, panel_end=2)
    assert not data[[0, 2]].any()
    assert np.isnan(scale[:64]).all()
    for panel in (0, 2):
        native.module().pack(w, "f32", data, scale, panel_begin=panel, panel_end=panel + 1)
    np.testing.assert_array_equal(data, int8.pack(*int8.quantize_weight(w))[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(dtype: Any, value: float) -> None:
    w = np.ones((200, 64), np.float32)
    w[170, 3] = w[133, 9] = value
    with pytest.raises(ModelFormatError, match=r"mlp\.up.*row 133"):
        native.pack_q8(w.astype(dtype), *buffers(200, 64), "mlp.up", native.thread_pool(2))


def test_wrong_arguments_are_refused() -> None:
    w, module = np.ones((64, 64), np.float32), native.module()
    data, scale = buffers(64, 64)
    with pytest.raises(ValueError, match="accepted: f32"):
        module.pack(w, "f64", data, scale)
    with pytest.raises(ValueError, match="2-byte"):
        module.pack(w, "bf16", data, scale)
    with pytest.raises(ValueError, match="size"):
        module.pack(w, "f32", data[:, :8].copy(), scale)
    with pytest.raises(ValueError, match="panels"):
        module.pack(w, "f32", data, scale, panel_end=2)
