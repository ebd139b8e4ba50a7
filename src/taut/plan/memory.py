"""Where each buffer lies: lifetimes to offsets, so that buffers that never live together share bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taut.plan.plan import Buffer, Space


@dataclass(frozen=True)
class Lifetime:
    """A buffer of `row_bytes` per unit of `space`, alive from step `first` to step `last`, both included."""

    space: Space
    row_bytes: int
    first: int
    last: int


def place(lifetimes: Mapping[str, Lifetime]) -> tuple[dict[str, Buffer], dict[Space, int]]:
    """Greedy by size (Pisarchyk and Lee 2020): the largest first, each at the lowest offset free during its whole life.

    Returns the buffers, and the bytes per unit that each space needs.
    """
    placed: dict[str, Buffer] = {}
    order = sorted(lifetimes, key=lambda name: (-lifetimes[name].row_bytes, lifetimes[name].first, name))
    for name in order:
        life = lifetimes[name]
        taken = sorted(
            (placed[other].offset, placed[other].offset + lifetimes[other].row_bytes)
            for other in placed
            if _overlap(life, lifetimes[other])
        )
        offset = 0
        for begin, end in taken:
            if offset + life.row_bytes <= begin:
                break
            offset = max(offset, end)
        placed[name] = Buffer(life.space, offset, life.row_bytes)
    spaces: dict[Space, int] = {"tokens": 0, "rows": 0, "sequences": 0}
    for buffer in placed.values():
        spaces[buffer.space] = max(spaces[buffer.space], buffer.offset + buffer.row_bytes)
    return placed, spaces


def _overlap(a: Lifetime, b: Lifetime) -> bool:
    return a.space == b.space and a.first <= b.last and b.first <= a.last
