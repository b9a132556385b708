"""What happens to the prefix cache, as events: in order, with tokens, and only if somebody asked."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from support.builders.engine import a_media_request, a_request, a_scheduler
from support.fakes.runner import FakeRunner
from support.kv_events import Receiver, decode
from triptych_engine.kv_events.batches import KVEventBatch, external_hash, extra_keys
from triptych_engine.kv_events.publisher import encode
from triptych_engine.media.item import Bidirectional
from triptych_engine.scheduling.cache.block_pool import AllBlocksCleared, BlockPool, BlockRemoved, BlockStored
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.request import Request
from triptych_engine.scheduling.scheduler import Scheduler


def a_random_run(scheduler: Scheduler, num_steps: int, after_step: Callable[[], None]) -> int:
    """Few blocks and few tokens, so that prefixes collide and sequences are preempted. Returns the number of preemptions."""
    chance, runner, number = random.Random(3), FakeRunner(), 0
    for _ in range(num_steps):
        if chance.random() < 0.4:
            number += 1
            prompt = [chance.randrange(2) for _ in range(chance.randint(1, 24))]
            request = a_request(f"r{number}", prompt, max_tokens=chance.randint(1, 12))
            request.cache_salt = runner.salts[request.request_id] = chance.choice(["", "", "1:t"])
            scheduler.add(request)
        if chance.random() < 0.02 and scheduler.live_request_ids:
            scheduler.abort([chance.choice(scheduler.live_request_ids)])
        if chance.random() < 0.005:
            scheduler.reset_caches()
        scheduled = scheduler.schedule()
        if not scheduled.is_empty:
            scheduler.update_from_output(scheduled, runner.execute(scheduled))
        after_step()
    return scheduler.num_preemptions


def test_blocks_rebuilt_from_events_are_those_of_the_pool() -> None:
    """After each of 5,000 steps, with names that are computed anew from parents and tokens."""
    scheduler, receiver = a_scheduler(num_blocks=14, max_num_seqs=4), Receiver()
    pool = scheduler.kv_cache.pool
    pool.record_events()
    kinds = dict.fromkeys((BlockStored, BlockRemoved, AllBlocksCleared), 0)

    def compare() -> None:
        events = pool.take_events()
        for event in events:
            kinds[type(event)] += 1
        receiver.take(decode(encode(KVEventBatch(0, 0.0, events))))
        assert receiver.held == {external_hash(one) for one in pool._block_of}

    assert a_random_run(scheduler, 5_000, compare) > 10
    assert min(kinds[BlockStored], kinds[BlockRemoved]) > 1000
    assert kinds[AllBlocksCleared] > 10


def test_without_a_listener_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(*args: object) -> None:
        raise AssertionError("an event was made")

    monkeypatch.setattr(KVCacheManager, "_note_stored", noted)
    monkeypatch.setattr(BlockPool, "_note_removed", noted)
    scheduler = a_scheduler(num_blocks=14, max_num_seqs=4)
    a_random_run(scheduler, 500, lambda: None)
    pool = scheduler.kv_cache.pool
    assert (pool._events, pool._changes, pool.take_events()) == (None, None, [])


def computed(cache: KVCacheManager, request: Request) -> Request:
    cache.allocate(request, cache.find_cached_prefix(request))
    cache.commit(request, request.num_tokens - request.num_computed_tokens)
    return request


def test_a_block_that_goes_and_comes_back_in_one_step_is_there() -> None:
    cache = KVCacheManager(2, 4)
    cache.pool.record_events()
    cache.release(computed(cache, a_request("a", [1] * 8)))
    first, second = a_request("a", [1] * 8), a_request("b", [2] * 8)
    cache.pool.take_events()
    cache.release(computed(cache, second))
    computed(cache, first)
    events = cache.pool.take_events()
    assert [type(event) for event in events] == [BlockRemoved, BlockStored, BlockRemoved, BlockStored]
    stored = [event for event in events if isinstance(event, BlockStored)]
    assert [event.token_ids for event in stored] == [[2] * 8, [1] * 8]
    assert stored[1].block_hashes == first.block_hashes == list(cache.pool._block_of)
    assert cache.pool.take_events() == []


def test_only_the_block_that_is_found_is_told_of() -> None:
    """Two sequences compute the same block at the same time. The copy that is not in the index comes and goes unsaid."""
    cache = KVCacheManager(4, 4)
    cache.pool.record_events()
    one, other = a_request("a", [1] * 5), a_request("b", [1] * 5)
    for request in (one, other):
        cache.allocate(request, cache.find_cached_prefix(request))
    for request in (one, other):
        cache.commit(request, 5)
    (stored,) = cache.pool.take_events()
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == one.block_hashes
    cache.release(other)
    assert cache.pool.allocate(2)
    assert cache.pool.take_events() == []
    cache.release(one)
    assert cache.pool.allocate(2)
    assert cache.pool.take_events() == [BlockRemoved(one.block_hashes)]


def test_a_run_begins_at_the_first_new_block() -> None:
    cache = KVCacheManager(8, 4)
    cache.pool.record_events()
    computed(cache, a_request("a", [1] * 8))
    cache.pool.take_events()
    longer = computed(cache, a_request("b", [1] * 8 + [2] * 8))
    (event,) = cache.pool.take_events()
    assert isinstance(event, BlockStored)
    assert (event.parent_block_hash, event.block_hashes) == (longer.block_hashes[1], longer.block_hashes[2:])


def test_keys_tell_pictures_and_salts_apart() -> None:
    """An item has its place from the block's beginning on, once, also if the block has two of its runs."""
    cache = KVCacheManager(32, 4)
    cache.pool.record_events()
    request = a_media_request("a", [1, (b"cat", (5,)), 1, (b"dog", (1, 1)), 1, 1])
    request.cache_salt = "s"
    computed(cache, request)
    cat, dog = (item.identity.hex() for item in request.media.items)
    (event,) = cache.pool.take_events()
    assert isinstance(event, BlockStored)
    assert extra_keys(event) == [((cat, 1), "s"), ((cat, -3), (dog, 3)), ((dog, 1),)]


def test_tokens_that_see_later_ones_are_told_apart_by_all_of_them() -> None:
    cache = KVCacheManager(32, 4)
    cache.pool.record_events()
    request = computed(cache, a_media_request("a", [1, (b"cat", (5,)), 1, 1], Bidirectional.IMAGES))
    (event,) = cache.pool.take_events()
    assert isinstance(event, BlockStored)
    (span,) = request.media.spans
    assert [keys[-1] for keys in event.extra_keys] == [span.digest] * 2
