"""The cache's geometry and what survives its formats."""

from __future__ import annotations

import itertools
from typing import get_args

import numpy as np
import pytest

from taut.engine.kv_cache import BLOCK_TOKENS, Format, KVLayout, KVPool

FORMATS = get_args(Format)


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("head_dim", [4, 12, 16, 64, 80, 128])
def test_every_address_is_a_multiple_of_128(format_: str, head_dim: int) -> None:
    layout = KVLayout(3, 2, head_dim, format_)  # type: ignore[arg-type]
    pool = KVPool(layout, 5)
    ends: list[tuple[int, int]] = []
    for block in range(5):
        begin = pool.address + block * layout.block_bytes
        assert begin % 128 == 0
        for layer in range(3):
            for part in (0, 1):
                for head in range(2):
                    slot = begin + layout.slot_offset(layer, part, head)
                    assert slot % 128 == 0
                    ends.append((slot, slot + layout.slots[part].nbytes))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends)), "slots share no bytes"
    assert ends[-1][1] == pool.address + pool.memory.nbytes
    assert all(slot.nbytes >= BLOCK_TOKENS * head_dim / 2 for slot in layout.slots)


@pytest.mark.parametrize("format_", ["int8", "fp32"])
def test_round_trip(format_: str) -> None:
    rng = np.random.default_rng(0)
    pool = KVPool(KVLayout(2, 3, 16, format_), 6)  # type: ignore[arg-type]
    table = np.array([4, 1, 5], np.int32)
    k, v = rng.normal(size=(2, 70, 3, 16)).astype(np.float32)
    for begin, end in ((0, 1), (1, 40), (40, 70)):
        pool.write(1, table, np.arange(begin, end), k[begin:end], v[begin:end])
    got_k, got_v = pool.read(1, table, 70)
    for got, want in ((got_k, k), (got_v, v)):
        if format_ == "fp32":
            np.testing.assert_array_equal(got, want)
        else:
            absmax = np.abs(want).max(axis=-1, keepdims=True)
            assert (np.abs(got - want) <= absmax / 127 / 2 * 1.001).all()
    other, _ = pool.read(0, table, 70)
    assert not other.any(), "layers share no bytes"


def test_non_finite_head_reads_as_nan() -> None:
    """A NaN must not turn into a plausible number: the request has to fail visibly, other tokens and heads stay whole."""
    pool = KVPool(KVLayout(1, 2, 8), 1)
    k = np.ones((2, 2, 8), np.float32)
    k[0, 1, 3] = np.inf
    pool.write(0, np.array([0]), np.arange(2), k, k)
    got, _ = pool.read(0, np.array([0]), 2)
    assert np.isnan(got[0, 1]).all() and np.isfinite(got[0, 0]).all() and np.isfinite(got[1]).all()


def test_bytes_of_a_token() -> None:
    """Of SmolLM2-135M."""
    sizes = {kv: KVLayout(30, 3, 64, kv).bytes_per_token for kv in FORMATS}
    assert sizes == {"fp32": 46080, "bf16": 23040, "int8": 12240, "k8v4": 9720}
