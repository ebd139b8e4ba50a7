"""The numbers of each kind of slot: what rounding costs, and what no slot may hide."""

from __future__ import annotations

import numpy as np
import pytest

from taut.engine.kv_slots import GROUP, KINDS, Floats, Kind, Slot, quantize_groups

RNG = np.random.default_rng(0)


def stored(kind: Kind, x: Floats, *, is_key: bool = False) -> Floats:
    """Rows (tokens, head_dim) as a slot gives them back."""
    slot = Slot(kind, is_key, x.shape[1])
    raw = np.full(slot.nbytes, 0xFF, np.uint8)
    for token, row in enumerate(x):
        slot.write(raw, token, row)
    return slot.read(raw)[: len(x)]


@pytest.mark.parametrize("is_key", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "int4"])
def test_numbers_that_a_kind_holds_come_back_whole(kind: Kind, is_key: bool) -> None:
    x = RNG.integers(-127, 128, (32, 20)).astype(np.float32)
    x[:, 3] = 127
    np.testing.assert_array_equal(stored(kind, x, is_key=is_key), x)


def test_sixteen_steps_between_the_ends_of_a_group() -> None:
    """Each group has its own scale and minimum, the short last one too."""
    q = RNG.integers(0, 16, (32, 80)).astype(np.float32)
    q[:, ::GROUP], q[:, 1::GROUP] = 0, 15
    scale, minimum = np.repeat([[0.5, 2.0, 0.125]], GROUP, 1)[:, :80], np.repeat([[-3.0, 100.0, 0.0]], GROUP, 1)[:, :80]
    x = (q * scale + minimum).astype(np.float32)
    np.testing.assert_array_equal(stored("int4", x), x)


def test_rounding_of_four_bits_stays_within_half_a_step() -> None:
    x = (RNG.standard_normal((32, 64)) * np.exp(RNG.standard_normal((32, 1)) * 3)).astype(np.float32)
    groups = x.reshape(32, 2, GROUP)
    span = groups.max(axis=2) - groups.min(axis=2)
    bound = span / 30 + 2**-11 * (np.abs(groups).max(axis=2) + span)  # half a step; float16 rounds the ends
    assert (np.abs(stored("int4", x).reshape(groups.shape) - groups) <= bound[..., None]).all()


def test_a_group_of_one_value_and_one_of_tiny_ones() -> None:
    x = np.full((1, 64), 0.3, np.float32)
    x[0, GROUP:] = RNG.standard_normal(GROUP) * 1e-9
    got = stored("int4", x)
    assert (np.abs(got[0, :GROUP] - 0.3) < 1e-4).all() and np.abs(got[0, GROUP:]).max() <= 2**-24


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 7e4, -7e4])
def test_what_four_bits_cannot_hold_is_nan(bad: float) -> None:
    """The group with it alone; 7e4 as a maximum is within reach, for only the minimum and a step are float16."""
    x = RNG.standard_normal((1, 64)).astype(np.float32)
    x[0, 5] = bad
    got = stored("int4", x)
    assert np.isfinite(got[0, GROUP:]).all()
    if bad == 7e4:
        assert abs(got[0, 5] - bad) <= bad / 30
    else:
        assert np.isnan(got[0, :GROUP]).all()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_never_reads_as_a_number(kind: Kind, bad: float) -> None:
    x = np.ones((2, 8), np.float32)
    x[0, 3] = bad
    got = stored(kind, x)
    assert not np.isfinite(got[0, 3]) and np.isfinite(got[1]).all()


def test_a_zero_has_no_sign() -> None:
    """Or the bits would depend on the order in which a minimum is found."""
    one, other = np.array([0.0, -0.0, 1.0, 0.0], np.float32), np.array([-0.0, 0.0, 1.0, 0.0], np.float32)
    for (data, params), (data_2, params_2) in [(quantize_groups(one), quantize_groups(other))]:
        assert data.tobytes() == data_2.tobytes() and params.tobytes() == params_2.tobytes()


def test_bytes_of_each_kind() -> None:
    assert [Slot(kind, False, 64).nbytes for kind in KINDS] == [8192, 4096, 2048 + 128, 1024 + 256]
