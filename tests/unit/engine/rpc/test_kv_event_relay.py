"""What SMG hears of the prefix cache: a snapshot of it, then what happens, as its contract's comments define them."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from smg_grpc_proto.generated import common_pb2 as smg_pb2
from support.builders.engine import a_media_request, a_request
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.rpc.vllm import kv_events as module
from triptych_engine.rpc.vllm.kv_events import KvEventRelay, KvSubscription
from triptych_engine.scheduling.cache.block_pool import AllBlocksCleared
from triptych_engine.scheduling.cache.kv_cache import KVCacheManager
from triptych_engine.scheduling.request import Request


class Router:
    """Applies messages as SMG does: in the order of their numbers, and children only to parents that it knows."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.last: int | None = None
        self.event_ids: list[int] = []

    def take(self, message: Any) -> None:
        assert self.last is None or message.sequence_number == self.last + 1
        assert message.dp_rank == 0
        self.last = message.sequence_number
        for event in message.events:
            if event.event_id:
                self.event_ids.append(event.event_id)
            kind = event.WhichOneof("data")
            if kind == "cleared":
                self.blocks.clear()
            elif kind == "removed":
                for block_hash in event.removed.block_hashes:
                    del self.blocks[block_hash]
            else:
                self._store(event.stored, is_snapshot=message.HasField("snapshot"))

    def _store(self, stored: Any, *, is_snapshot: bool) -> None:
        assert (stored.tier, stored.medium) == (smg_pb2.KV_CACHE_TIER_DEVICE, "GPU")
        parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        for block in stored.blocks:
            assert block.block_hash not in self.blocks
            assert len(block.token_ids) == block.block_size
            if not is_snapshot and parent is not None:
                assert parent in self.blocks
            keys = tuple(key.SerializeToString() for key in block.extra_keys)
            self.blocks[block.block_hash] = (parent, tuple(block.token_ids), keys, stored.cache_salt)
            parent = block.block_hash


class Engine:
    """A prefix cache, and those who hear of it."""

    def __init__(self, num_blocks: int = 24) -> None:
        self.cache = KVCacheManager(num_blocks, 4)
        self.cache.pool.record_events()
        self.batches = KVEventBatches(asyncio.get_running_loop())
        self.relay = KvEventRelay(self.batches)

    def compute(self, request: Request) -> Request:
        cached = self.cache.find_cached_prefix(request)
        self.cache.allocate(request, cached)
        self.cache.commit(request, request.num_tokens - request.num_computed_tokens)
        return request

    def step(self, *prompts: list[int], salt: str = "") -> None:
        for prompt in prompts:
            request = a_request("r", prompt)
            request.cache_salt = salt
            self.cache.release(self.compute(request))
        self.publish()

    def publish(self) -> None:
        if events := self.cache.pool.take_events():
            self.batches._deliver(1.5, events)

    def subscribe(self, start: int = 0) -> KvSubscription:
        subscription = self.relay.subscribe(start)
        assert subscription is not None
        return subscription


async def heard(subscription: KvSubscription) -> list[Any]:
    """All messages so far."""
    messages = [*subscription._first]
    while not subscription._waiting.empty():
        messages.append(subscription._waiting.get_nowait())
    return messages


async def test_whoever_comes_when_knows_what_the_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routers come in the course of 400 steps. Afterwards all know the same blocks, each with the fields of its store."""
    monkeypatch.setattr(module, "_MAX_CHUNK_BLOCKS", 5)
    chance, engine = random.Random(1), Engine()
    routers = [(Router(), engine.subscribe())]
    for number in range(400):
        prompts = [[chance.randrange(2) for _ in range(chance.randint(4, 24))] for _ in range(chance.randint(1, 3))]
        engine.step(*prompts, salt=chance.choice(["", "s"]))
        if chance.random() < 0.02:
            engine.cache.pool.reset_cache()
            engine.publish()
        if number % 20 == 0:
            routers.append((Router(), engine.subscribe()))
    for router, subscription in routers:
        for message in await heard(subscription):
            router.take(message)
        assert router.blocks == routers[0][0].blocks
        assert router.event_ids == [*range(router.event_ids[0], routers[0][0].event_ids[-1] + 1)]
    names = {int.from_bytes(one[-8:], "big", signed=True) for one in engine.cache.pool._block_of}
    assert routers[0][0].blocks.keys() == names
    assert len(names) > 5


async def test_a_snapshot_comes_in_chunks_whose_numbers_end_with_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.step([1] * 16)
    (only,) = await heard(engine.subscribe())
    assert (only.sequence_number, only.snapshot.count, only.snapshot.blocks, only.snapshot.unknown_before) == (0, 1, 4, 0)
    for number in range(2, 6):
        engine.step([number] * 16)
    monkeypatch.setattr(module, "_MAX_CHUNK_BLOCKS", 8)
    chunks = await heard(engine.subscribe())
    assert [(one.sequence_number, one.snapshot.index, one.snapshot.count) for one in chunks] == [(2, 0, 3), (3, 1, 3), (4, 2, 3)]
    assert [len(one.events) for one in chunks] == [8, 7, 6]
    assert [one.events[0].WhichOneof("data") for one in chunks] == ["cleared", "stored", "stored"]
    assert {event.event_id for one in chunks for event in one.events} == {0}
    # Not more chunks than batches: a number cannot be negative.
    monkeypatch.setattr(module, "_MAX_CHUNK_BLOCKS", 1)
    assert [one.sequence_number for one in await heard(engine.subscribe())] == [0, 1, 2, 3, 4]


async def test_a_parent_comes_before_children_that_are_older() -> None:
    """Two requests compute one block. The copy in the index goes, while a child of the other stays. A third stores it again."""
    engine = Engine(num_blocks=8)
    cache, one, other = engine.cache, a_request("a", [1] * 5), a_request("b", [1] * 9)
    for request in (one, other):
        cache.allocate(request, [])
    cache.commit(one, 5)
    cache.commit(other, 8)
    cache.release(one)
    blocks = cache.pool.allocate(cache.pool.num_free_blocks)
    assert blocks is not None
    cache.pool.release(blocks)
    engine.compute(a_request("c", [1] * 5))
    engine.publish()
    assert list(engine.relay._blocks) == other.block_hashes[1::-1]
    (snapshot,) = await heard(engine.subscribe())
    parent, child = (event.stored for event in snapshot.events[1:])
    assert not parent.HasField("parent_block_hash")
    assert child.parent_block_hash == parent.blocks[0].block_hash


async def test_media_and_salts_are_keys_of_their_own_kind() -> None:
    engine = Engine()
    request = a_media_request("a", [1, (b"cat", (6,)), 1])
    request.cache_salt = "s"
    engine.compute(request)
    engine.publish()
    (message,) = await heard(engine.subscribe())
    first, second = (event.stored for event in message.events[1:])
    assert {first.cache_salt, second.cache_salt} == {"s"}
    picture, salt = first.blocks[0].extra_keys
    identity = request.media.items[0].identity.hex()
    assert (picture.multimodal.identifier, picture.multimodal.offset, salt.text) == (identity, 1, "s")
    (picture,) = second.blocks[0].extra_keys
    assert (picture.multimodal.identifier, picture.multimodal.offset) == (identity, -3)


async def test_where_a_stream_can_begin() -> None:
    engine = Engine()
    assert await heard(engine.subscribe(0)) == []
    assert engine.relay.subscribe(1) is None
    for number in range(3):
        engine.step([number] * 4)
    (again,) = await heard(engine.subscribe(2))
    assert (again.sequence_number, again.HasField("snapshot"), again.events[0].event_id) == (2, False, 3)
    assert await heard(engine.subscribe(3)) == []
    assert [engine.relay.subscribe(start) for start in (1, 4, 2**64 - 1)] == [None] * 3


async def test_who_reads_too_slowly_is_told_and_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 3)
    engine = Engine()
    subscription, gone = engine.subscribe(), engine.subscribe()
    engine.relay.leave(gone)
    for _ in range(3):
        engine.batches._deliver(1.5, [AllBlocksCleared()])
    assert engine.batches.num_dropped == 0
    for _ in range(2):
        engine.batches._deliver(1.5, [AllBlocksCleared()])
    assert engine.batches.num_dropped == 5
    async with asyncio.timeout(10):
        assert [message async for message in subscription.messages()] == []
    assert gone._waiting.qsize() == 0
