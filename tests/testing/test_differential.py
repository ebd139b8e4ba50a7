from __future__ import annotations

import numpy as np
import pytest

from taut.engine.batch import Batch
from taut.testing import compare, difference, ragged


class Fixed:
    def __init__(self, *outputs: list[float]) -> None:
        self.outputs = outputs

    def run(self, batch: Batch) -> list[np.ndarray]:
        return [np.array(output, np.float32) for output in self.outputs]


def test_compare_reports_every_output() -> None:
    batch = ragged([3], 10)
    first, second = compare(Fixed([1, -4], [0, 0]), Fixed([1, -4], [0, 0.5]), batch)
    assert first.identical
    assert first.relative == 0
    assert not second.identical
    assert second.relative == 0.5  # an all-zero reference: absolute
    assert compare(Fixed([2, -4]), Fixed([2, -3]), batch)[0].relative == 0.25


def test_nan_must_be_on_both_sides() -> None:
    nan = float("nan")
    both = difference(np.array([nan, 2], np.float32), np.array([nan, 2], np.float32))
    assert both.identical
    assert difference(np.array([nan, 2], np.float32), np.array([1, 2], np.float32)).relative == float("inf")
    assert difference(np.array([1, 2], np.float32), np.array([1, nan], np.float32)).relative == float("inf")


def test_shapes_must_agree() -> None:
    with pytest.raises(AssertionError, match="shapes"):
        difference(np.zeros(2, np.float32), np.zeros(3, np.float32))


def test_ragged_sequences_share_no_block() -> None:
    batch = ragged([40, 1], 10, cached=[0, 70])
    assert batch.context.tolist() == [40, 71]
    assert batch.tables.tolist() == [[0, 1, 0], [2, 3, 4]]
    assert batch.num_rows == 41
