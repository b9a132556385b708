"""The block pool: LRU order, sharing, forgetting."""

import pytest
from triptych_engine.scheduling.cache.block_pool import BlockPool


def test_allocate_gives_each_block_once_and_none_when_too_few_are_free():
    pool = BlockPool(3)
    first = pool.allocate(2)
    assert first is not None
    assert pool.allocate(2) is None
    rest = pool.allocate(1)
    assert rest is not None
    assert sorted(first + rest) == [0, 1, 2]
    assert pool.num_free_blocks == 0


def test_a_released_block_is_found_by_its_hash_until_it_is_given_away():
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.cache(block, b"prefix")
    pool.release([block])
    assert pool.find_prefix([b"prefix"]) == [block]
    pool.allocate(2)
    assert pool.find_prefix([b"prefix"]) == []


def test_blocks_without_a_prefix_are_given_away_before_cached_ones_and_later_tokens_before_earlier():
    pool = BlockPool(3)
    blocks = pool.allocate(3) or []
    for index, block in enumerate(blocks[:2]):
        pool.cache(block, bytes([index]))
    pool.release(blocks)
    assert [pool.allocate(1) for _ in range(3)] == [[blocks[2]], [blocks[1]], [blocks[0]]]


def test_a_block_with_two_holders_is_free_when_both_have_let_go():
    pool = BlockPool(1)
    (block,) = pool.allocate(1) or []
    pool.hold([block])
    pool.release([block])
    assert pool.num_free_blocks == 0
    pool.release([block])
    assert pool.num_free_blocks == 1


def test_find_prefix_stops_at_the_first_gap():
    pool = BlockPool(3)
    blocks = pool.allocate(3) or []
    pool.cache(blocks[0], b"a")
    pool.cache(blocks[2], b"c")
    assert pool.find_prefix([b"a", b"b", b"c"]) == [blocks[0]]


def test_the_first_block_of_a_prefix_stays_the_one_that_is_found():
    pool = BlockPool(2)
    first, second = pool.allocate(2) or []
    pool.cache(first, b"same")
    pool.cache(second, b"same")
    assert pool.find_prefix([b"same"]) == [first]
    pool.check_integrity([[first, second]])


def test_reset_forgets_prefixes_but_takes_no_block_from_its_holder():
    pool = BlockPool(2)
    (block,) = pool.allocate(1) or []
    pool.cache(block, b"x")
    assert pool.reset_cache() == 1
    assert pool.find_prefix([b"x"]) == []
    pool.check_integrity([[block]])


def test_releasing_more_often_than_holding_is_an_error():
    pool = BlockPool(1)
    (block,) = pool.allocate(1) or []
    pool.release([block])
    with pytest.raises(AssertionError, match="released more often"):
        pool.release([block])


@pytest.mark.parametrize("holders", [[], [[0], [0]], [[0, 0]], [[1]]])
def test_check_integrity_notices_wrong_holders(holders: list[list[int]]):
    pool = BlockPool(2)
    assert pool.allocate(1) == [0]
    with pytest.raises(AssertionError):
        pool.check_integrity(holders)


def test_a_pool_needs_a_block():
    with pytest.raises(ValueError, match="at least one block"):
        BlockPool(0)
