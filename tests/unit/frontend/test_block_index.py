"""What a frontend knows of an engine's prefix cache is what the engine holds."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from support.drivers.engine_router import a_request
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.model.blocks import block_id, prefix_ids
from triptych_engine.scheduling.cache.block_pool import BlockPool
from triptych_frontend.engines.blocks import BlockIndex

_SIZE = 16


@pytest.mark.parametrize("drops", [0.0, 0.01])
def test_the_index_is_that_of_the_pool(drops: float) -> None:
    """After 100,000 operations of a pool, of whose changes some are lost on the way."""
    chance, pool, index = random.Random(5), BlockPool(64), BlockIndex()
    sequence, num_gaps = 0, 0
    held: list[list[int]] = []

    def told(added: Sequence[bytes], removed: Sequence[bytes] = (), *, is_whole: bool = False) -> bool:
        nonlocal sequence
        sequence += 1
        if chance.random() < drops:
            return True
        return index.update(
            engine_pb2.WatchBlocksResponse(
                sequence=sequence,
                is_whole=is_whole,
                added=map(block_id, added),
                removed=map(block_id, removed),
                block_size=_SIZE,
            )
        )

    def watch() -> None:
        nonlocal sequence
        pool.take_changes()
        sequence = 0
        while index._sequence != 1:
            sequence = 0
            told(pool.watch()[1], is_whole=True)

    watch()
    for number in range(100_000):
        if held and (chance.random() < 0.5 or not pool.num_free_blocks):
            pool.release(held.pop(chance.randrange(len(held))))
        elif blocks := pool.allocate(min(chance.randint(1, 4), pool.num_free_blocks)):
            held.append(blocks)
            for block in blocks:
                pool.cache(block, chance.randrange(400).to_bytes(32, "little"))
        if chance.random() < 0.0005:
            pool.reset_cache()
        if chance.random() < 0.2 and (changes := pool.take_changes()) and not told(*changes[1:]):
            num_gaps += 1
            index._sequence = 0
            watch()
        if number % 1000 == 0 and not drops:
            changes = pool.take_changes()
            assert changes is None or told(*changes[1:])
            assert index.held == {block_id(one) for one in pool._block_of}
    index._sequence = 0
    watch()
    assert index.held == {block_id(one) for one in pool._block_of}
    assert (num_gaps > 50) == bool(drops)


def test_blocks_that_go_in_any_order_leave_nothing() -> None:
    """ai-dynamo/dynamo #10774: after the shared head of two prompts was removed, the tail of one was counted for ever."""
    for removed in ([[1, 2], [3, 4], [9]], [[9, 4, 3, 2, 1]], [[2, 3], [1, 9, 4]]):
        index = BlockIndex()
        stored = [[1, 2, 3, 4], [1, 2, 9]]
        for sequence, added in enumerate(stored, 1):
            index.update(engine_pb2.WatchBlocksResponse(sequence=sequence, is_whole=sequence == 1, added=added, block_size=_SIZE))
        for sequence, blocks in enumerate(removed, 3):
            assert index.update(engine_pb2.WatchBlocksResponse(sequence=sequence, removed=blocks))
            assert index.num_held([1, 2, 3, 4]) == (1 if blocks == [2, 3] else 0)
        assert index.held == set()


def test_expected_blocks_are_forgotten_after_a_while() -> None:
    now_s = 0.0
    index = BlockIndex(lambda: now_s)
    index.expect([1, 2])
    now_s = 6.0
    index.expect([3])
    assert (index.num_held([1, 2, 3, 4]), index.num_held([4, 1])) == (3, 0)
    now_s = 11.0
    assert (index.num_held([1, 2, 3]), index.num_held([3, 1])) == (0, 1)
    index.expect([])
    assert list(index._expected) == [3]
    index.update(engine_pb2.WatchBlocksResponse(sequence=1, is_whole=True, added=[1], block_size=16))
    index.update(engine_pb2.WatchBlocksResponse(sequence=2, added=[3], removed=[1]))
    assert (index.held, index._expected) == ({3}, {})


def test_names_are_those_of_the_engine() -> None:
    """The engine's own hashes of a prompt, with a tenant's salt."""
    from triptych_engine.rpc.convert import to_requests
    from triptych_engine.scheduling.cache.kv_cache import KVCacheManager

    model = common_pb2.ModelInfo(name="m", vocab_size=1000, max_model_len=1000)
    prompt = [3, *range(1, 100)]
    message = a_request("r")
    message.prompt_token_ids.extend(prompt)
    message.context.tenant = "some one"
    message.cache_salt = "9:some onesalt"
    (request,) = to_requests(message, model, 1000)
    cache = KVCacheManager(64, _SIZE)
    cache.find_cached_prefix(request)
    salt = f"{len('some one')}:some one9:some onesalt"
    assert [block_id(one) for one in request.block_hashes] == prefix_ids(salt, prompt, _SIZE)
    assert len(request.block_hashes) == 6
