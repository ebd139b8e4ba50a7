"""The block pool: reuse by content, eviction of what was released longest ago, and books that are checked."""

from __future__ import annotations

import pytest

from taut.scheduler.blocks import BlockPool


def filled(pool: BlockPool, tokens: list[int]) -> list[int]:
    blocks = pool.take(-(-len(tokens) // 32))
    pool.publish(blocks, tokens, 0, len(tokens) // 32 * 32)
    return blocks


def test_match_shares_ownership() -> None:
    pool = BlockPool(8)
    first = filled(pool, list(range(64)))
    again = pool.match(list(range(65)))
    assert again == first and pool.num_owned == 2
    pool.release(first)
    pool.check_integrity([again])
    pool.release(again)
    pool.check_integrity([])
    assert pool.num_available == 8


def test_a_hash_collision_is_not_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    from taut.scheduler import blocks

    monkeypatch.setattr(blocks._Name, "digest", property(lambda self: b"same"))
    pool = BlockPool(8)
    filled(pool, [1] * 32)
    assert pool.match([2] * 40) == []
    assert len(pool.match([1] * 40)) == 1


def test_salt_separates() -> None:
    a, b = BlockPool(4, b"a"), BlockPool(4, b"b")
    filled(a, [1] * 32)
    filled(b, [1] * 32)
    assert set(a._found).isdisjoint(b._found)


def test_oldest_is_evicted_first_and_tails_before_heads() -> None:
    pool = BlockPool(4)
    one = filled(pool, [1] * 64)
    pool.release(one)
    two = filled(pool, [2] * 64)
    pool.release(two)
    pool.take(1)
    assert pool.match([1] * 65) == one[:1], "the tail of the oldest chain goes first"
    assert pool.match([2] * 65) == two


def test_same_content_twice_keeps_one_name() -> None:
    pool = BlockPool(8)
    a, b = filled(pool, [1] * 64), filled(pool, [1] * 64)
    pool.check_integrity([a, b])
    assert pool.match([1] * 65) == a
    pool.publish([*b, *pool.take(1)], [1] * 96, 2, 96)  # grows beyond its unnamed twin blocks


def test_integrity_check_bites() -> None:
    pool = BlockPool(4)
    blocks = pool.take(2)
    for wrong in ([], [blocks[:1]], [blocks, blocks], [[blocks[0], blocks[0]]]):
        with pytest.raises(AssertionError):
            pool.check_integrity(wrong)
    pool._free.append(blocks[0])
    with pytest.raises(AssertionError):
        pool.check_integrity([blocks])
