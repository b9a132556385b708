"""EncoderService over real gRPC, with a preprocessor and towers that have no model: joins, leases, limits, failures."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
import torch
from support.drivers.encoder import RunningEncoder
from support.fakes.grpc_server import serving
from support.fakes.waiting import until
from triptych_common.pb import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.errors import InvalidRequestError
from triptych_encoder.cache.embedding_cache import EmbeddingCache
from triptych_encoder.cache.evictions import EvictionFeed
from triptych_encoder.cache.item import EncodedItem, PreparedItem
from triptych_encoder.media.preprocess import Prepared
from triptych_encoder.pipeline import EncodingPipeline, Store
from triptych_encoder.rpc.servicer import EncoderServicer
from triptych_encoder.tower.device_loop import DeviceLoop

Tier = encoder_pb2.CacheTier
HIDDEN = 8
#: Bytes of an item's embeddings per byte of its file.
BYTES_PER_TOKEN = HIDDEN * 4


class FakePreprocessor:
    """An item of n bytes takes n tokens."""

    def prepare(self, modality: common_pb2.Modality, data: bytes, options: Mapping[str, Any]) -> Prepared:
        if data.startswith(b"bad"):
            raise InvalidRequestError("the image is bad", field="data")
        values = torch.tensor(list(data), dtype=torch.float32)[:, None].expand(-1, HIDDEN).contiguous()
        return Prepared(PreparedItem(modality, {"pixel_values": values}, len(data), {}), 0.01, 0.02)


@dataclass
class FakeTower:
    """Embeddings are what comes in. `gate`, when set, holds each batch until it is released."""

    gate: threading.Semaphore | None = None
    batches: list[int] = field(default_factory=list)
    num_waiting: int = 0

    def signature(self, item: PreparedItem) -> tuple[object, ...]:
        return (item.modality,)

    def encode(self, items: Sequence[PreparedItem]) -> list[dict[str, torch.Tensor]]:
        if self.gate is not None:
            self.num_waiting += 1
            self.gate.acquire()
            self.num_waiting -= 1
        self.batches.append(len(items))
        if any(item.inputs["pixel_values"][0, 0] == ord("!") for item in items):
            raise RuntimeError("the tower stumbled")
        if any(item.inputs["pixel_values"][0, 0] == 0 for item in items):
            return [{"embeds": item.inputs["pixel_values"] / 0} for item in items]
        return [{"embeds": item.inputs["pixel_values"]} for item in items]


@dataclass
class Served:
    """A running encoder of fakes."""

    client: RunningEncoder
    tower: FakeTower
    pipeline: EncodingPipeline

    def item(self, data: bytes, **options: Any) -> encoder_pb2.EncodeItem:
        return self.client.item("image", data, **options)

    async def stats(self) -> encoder_pb2.GetStatsResponse:
        stats = await self.client.stub.GetStats(encoder_pb2.GetStatsRequest())
        self.pipeline.cache.check_integrity()
        return stats


@asynccontextmanager
async def an_encoder(
    *,
    gated: bool = False,
    capacity_bytes: int = 1 << 20,
    max_queue: int = 64,
    store: Store | None = None,
    max_queue_bytes: int = 1 << 20,
) -> AsyncIterator[Served]:
    tower = FakeTower(threading.Semaphore(0) if gated else None)
    loop, feed, pool = DeviceLoop(max_batch_embeddings=1000), EvictionFeed(), ThreadPoolExecutor(2)
    loop.start()
    loop.attach(tower)
    cache = EmbeddingCache[EncodedItem](capacity_bytes, feed.publish)
    pipeline = EncodingPipeline(
        cache, FakePreprocessor(), loop, pool, store, max_queue=max_queue, max_queue_bytes=max_queue_bytes, max_prepared=8
    )
    servicer = EncoderServicer(feed, max_items_per_request=32)
    description = encoder_pb2.DescribeResponse(
        model=common_pb2.ModelInfo(name="fake"), key_scope=b"scope", modalities=[common_pb2.MODALITY_IMAGE]
    )
    servicer.attach(pipeline, description)
    try:
        async with (
            serving(lambda server: encoder_pb2_grpc.add_EncoderServiceServicer_to_server(servicer, server)) as address,
            open_channel(address) as channel,
        ):
            client = RunningEncoder(encoder_pb2_grpc.EncoderServiceStub(channel), description, None)  # type: ignore[arg-type]
            yield Served(client, tower, pipeline)
    finally:
        if tower.gate is not None:
            tower.gate.release(10_000)
        await pipeline.close()
        await asyncio.to_thread(loop.stop)
        pool.shutdown()


async def test_an_item_is_computed_once_and_found_again() -> None:
    async with an_encoder() as served:
        [first] = await served.client.encode(served.item(b"picture"))
        assert (first.tier, first.num_tokens) == (Tier.CACHE_TIER_MISS, 7)
        assert first.timings.decode_s == pytest.approx(0.01)
        [again] = await served.client.encode(served.item(b"picture", with_data=False))
        assert again.tier == Tier.CACHE_TIER_LOCAL
        assert again.lease_id != first.lease_id
        tensors = await served.client.fetch(first.key)
        assert tensors["embeds"][:, 0].tolist() == list(b"picture")
        stats = await served.stats()
        assert (stats.num_misses, stats.num_local_hits, stats.num_leases) == (1, 1, 2)
        assert stats.used_bytes == stats.leased_bytes == 7 * BYTES_PER_TOKEN


async def test_the_same_item_at_once_is_joined() -> None:
    async with an_encoder(gated=True) as served:
        calls = [asyncio.create_task(served.client.encode(served.item(b"same"))) for _ in range(5)]
        await until(lambda: served.pipeline.counters.num_joined == 4)
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        tiers = sorted([result.tier for [result] in await asyncio.gather(*calls)])
        assert tiers == [Tier.CACHE_TIER_MISS] + [Tier.CACHE_TIER_JOINED] * 4
        assert served.tower.batches == [1]
        assert (await served.stats()).num_leases == 5


async def test_one_bad_item_fails_alone() -> None:
    async with an_encoder() as served:
        results = await served.client.encode(
            served.item(b"good"), served.item(b"bad one"), served.item(b"!stumbles"), served.item(b"fine")
        )
        assert [result.error.reason for result in results] == ["", "INVALID_REQUEST", "INTERNAL", ""]
        assert "stumbled" not in results[2].error.message, "internal errors do not leak"
        assert (await served.stats()).num_failed == 2


async def test_a_failing_batch_is_tried_one_by_one() -> None:
    async with an_encoder(gated=True) as served:
        assert served.tower.gate is not None
        calls = [asyncio.create_task(served.client.encode(served.item(b"first")))]
        await until(lambda: served.tower.num_waiting == 1)
        calls += [asyncio.create_task(served.client.encode(served.item(data))) for data in (b"a", b"!b", b"c")]
        await until(lambda: served.pipeline._device_loop.queue_length == 3)
        served.tower.gate.release(10)
        results = [result for [result] in await asyncio.gather(*calls)]
        assert [bool(result.error.reason) for result in results] == [False, False, True, False]
        assert served.tower.batches == [1, 3, 1, 1, 1]


async def test_a_wrong_key_is_refused() -> None:
    async with an_encoder() as served:
        item = served.item(b"picture")
        item.data = b"another"
        [result] = await served.client.encode(item)
        assert (result.error.reason, result.error.field) == ("INVALID_REQUEST", "key")
        for changed in (
            encoder_pb2.EncodeItem(key=b"short", modality=common_pb2.MODALITY_IMAGE),
            served.item(b"x", options={"a": 1}),
            encoder_pb2.EncodeItem(key=item.key, modality=common_pb2.MODALITY_AUDIO),
        ):
            if changed.processor_options_json:
                changed.processor_options_json = "[1]"
            [result] = await served.client.encode(changed)
            assert result.error.reason == "INVALID_REQUEST"


async def test_options_and_salt_are_part_of_the_key() -> None:
    async with an_encoder() as served:
        results = await served.client.encode(
            served.item(b"x"),
            served.item(b"x", options={"size": 3}),
            served.item(b"x", tenant_salt="a"),
            served.item(b"x", tenant_salt="b"),
        )
        assert [result.tier for result in results] == [Tier.CACHE_TIER_MISS] * 4
        assert len({result.key for result in results}) == 4


async def test_a_key_without_bytes_is_asked_for_and_fetches_wait_for_it() -> None:
    async with an_encoder() as served:
        item = served.item(b"picture")
        [result] = await served.client.encode(served.item(b"picture", with_data=False))
        assert result.error.code == grpc.StatusCode.NOT_FOUND.value[0]
        fetching = asyncio.create_task(served.client.fetch(item.key))
        await asyncio.sleep(0.05)
        assert not fetching.done()
        await served.client.encode(item)
        assert (await fetching)["embeds"].shape == (7, HIDDEN)


async def test_a_key_that_nobody_announced_is_not_waited_for() -> None:
    async with an_encoder() as served:
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await asyncio.wait_for(served.client.fetch(served.item(b"unheard of").key), 5)


async def test_a_fetch_gives_up_in_time() -> None:
    async with an_encoder(gated=True) as served:
        call = asyncio.create_task(served.client.encode(served.item(b"slow")))
        await until(lambda: served.pipeline.num_in_flight == 1)
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await served.client.fetch(served.item(b"slow").key, timeout_s=0.05)
        assert served.tower.gate is not None
        served.tower.gate.release(1)
        [result] = await call
        assert not result.HasField("error")


async def test_a_full_queue_refuses_at_once() -> None:
    async with an_encoder(gated=True, max_queue=2) as served:
        calls = [asyncio.create_task(served.client.encode(served.item(data))) for data in (b"a", b"b")]
        await until(lambda: served.pipeline.num_in_flight == 2)
        [refused] = await served.client.encode(served.item(b"c"))
        assert refused.error.reason == "QUEUE_FULL"
        assert refused.error.retry_after_s > 0
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        await asyncio.gather(*calls)
        [accepted] = await served.client.encode(served.item(b"c"))
        assert not accepted.HasField("error")


async def test_what_nobody_waits_for_is_not_computed() -> None:
    async with an_encoder(gated=True) as served:
        first = asyncio.create_task(served.client.encode(served.item(b"first")))
        await until(lambda: served.tower.num_waiting == 1)
        given_up = asyncio.create_task(served.client.encode(served.item(b"given up")))
        await until(lambda: served.pipeline._device_loop.queue_length == 1)
        given_up.cancel()
        await until(lambda: served.pipeline.num_in_flight == 1)
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        await first
        [again] = await served.client.encode(served.item(b"given up"))
        assert again.tier == Tier.CACHE_TIER_MISS
        assert served.tower.batches == [1, 1]


async def test_leased_items_are_not_evicted_and_released_ones_are() -> None:
    async with an_encoder(capacity_bytes=10 * BYTES_PER_TOKEN) as served:
        [a] = await served.client.encode(served.item(b"aaaaa"))
        [b] = await served.client.encode(served.item(b"bbbbb"))
        [c] = await served.client.encode(served.item(b"ccccc"))
        assert c.error.reason == "QUEUE_FULL"
        released = await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[a.lease_id, "unknown"]))
        assert released.num_released == 1
        [c] = await served.client.encode(served.item(b"ccccc"))
        assert not c.HasField("error")
        lookup = await served.client.stub.Lookup(encoder_pb2.LookupRequest(keys=[a.key, b.key, c.key]))
        assert list(lookup.tiers) == [Tier.CACHE_TIER_MISS, Tier.CACHE_TIER_LOCAL, Tier.CACHE_TIER_LOCAL]
        assert (await served.stats()).num_evictions == 1


async def test_an_item_larger_than_the_cache_is_refused_for_good() -> None:
    async with an_encoder(capacity_bytes=BYTES_PER_TOKEN) as served:
        [result] = await served.client.encode(served.item(b"too long"))
        assert (result.error.reason, result.error.limit) == ("INVALID_REQUEST", str(BYTES_PER_TOKEN))


async def test_evicted_keys_are_told_to_watchers() -> None:
    async with an_encoder() as served:
        watch = served.client.stub.WatchEvictions(encoder_pb2.WatchEvictionsRequest())
        assert list((await watch.read()).keys) == []
        [a, b] = await served.client.encode(served.item(b"a"), served.item(b"b"))
        await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[a.lease_id]))
        evicted = await served.client.stub.Evict(encoder_pb2.EvictRequest())
        assert evicted.num_evicted == 1
        assert list((await watch.read()).keys) == [a.key]
        await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[b.lease_id]))
        assert list((await watch.read()).keys) == [b.key], "leased ones go when their last lease ends"
        watch.cancel()


async def test_large_tensors_come_in_chunks() -> None:
    async with an_encoder(capacity_bytes=1 << 24) as served:
        data = bytes(range(1, 251)) * 40
        [result] = await served.client.encode(served.item(data))
        request = encoder_pb2.FetchRequest(keys=[result.key], chunk_bytes=64 << 10)
        sizes = [len(chunk.data) async for chunk in served.client.stub.Fetch(request)]
        assert sum(sizes) == len(data) * BYTES_PER_TOKEN
        assert max(sizes) == 64 << 10
        assert (await served.client.fetch(result.key))["embeds"][:, 0].tolist() == list(data)


@pytest.mark.parametrize("options", [{"chunk_bytes": 1}, {"chunk_bytes": 4 << 20}, {"timeout_s": -1.0}])
async def test_fetch_options_have_limits(options: dict[str, Any]) -> None:
    async with an_encoder() as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.client.fetch(b"k" * 32, **options)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_leases_have_limits() -> None:
    async with an_encoder() as served:
        for lease_s in (0.5, 601.0):
            with pytest.raises(grpc.aio.AioRpcError, match="lease_s"):
                await served.client.encode(lease_s=lease_s)


async def test_a_fetch_of_an_item_that_fails_says_so_and_goes_on() -> None:
    async with an_encoder(gated=True) as served:
        good, bad = served.item(b"good"), served.item(b"!stumbles")
        calls = [asyncio.create_task(served.client.encode(item)) for item in (bad, good)]
        await until(lambda: served.pipeline.num_in_flight == 2)
        stream = served.client.stub.Fetch(encoder_pb2.FetchRequest(keys=[bad.key, good.key]))
        reading = asyncio.create_task(_read_all(stream))
        await asyncio.sleep(0.05)
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        first, second = await reading
        assert (first.key, first.error.reason, first.last_chunk_of_item) == (bad.key, "INTERNAL", True)
        assert (second.key, second.last_chunk_of_item) == (good.key, True)
        await asyncio.gather(*calls)


async def _read_all(stream: AsyncIterator[encoder_pb2.FetchResponse]) -> list[encoder_pb2.FetchResponse]:
    return [chunk async for chunk in stream]


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_items_leaves_nothing_behind(seed: int) -> None:
    """Encodes, fetches, cancellations, releases and evictions at random, on a cache that holds a few items: all end in a reply."""
    rng = random.Random(seed)
    files = [bytes([65 + index]) * rng.randint(1, 8) for index in range(12)] + [b"bad", b"!x"]
    allowed = {"", "QUEUE_FULL", "MEDIA_NOT_FOUND", "INVALID_REQUEST", "INTERNAL", "EMBEDDING_UNAVAILABLE"}
    async with an_encoder(capacity_bytes=24 * BYTES_PER_TOKEN, max_queue=6) as served:

        async def one() -> None:
            item = served.item(rng.choice(files), with_data=rng.random() < 0.8)
            [result] = await served.client.encode(item)
            assert result.error.reason in allowed, result.error
            if result.HasField("error"):
                return
            if rng.random() < 0.5:
                assert (await served.client.fetch(item.key))["embeds"].shape == (result.num_tokens, HIDDEN)
            await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[result.lease_id]))
            if rng.random() < 0.2:
                await served.client.stub.Evict(encoder_pb2.EvictRequest(keys=[item.key]))

        tasks = []
        for _ in range(300):
            tasks.append(asyncio.create_task(one()))
            if rng.random() < 0.2:
                rng.choice(tasks).cancel()
            if rng.random() < 0.3:
                await asyncio.sleep(0.001)
        outcomes = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        assert not failures, failures[:3]
        await until(lambda: served.pipeline.num_in_flight == 0)
        [last] = await served.client.encode(served.item(b"and one more"), lease_s=1.0)
        assert last.error.reason in ("", "QUEUE_FULL")
        stats = await served.stats()
        assert stats.used_bytes <= stats.capacity_bytes


class BrokenStore:
    """A second tier that is away."""

    num_failures = 0

    async def get(self, key: bytes) -> EncodedItem | None:
        self.num_failures += 1
        return None

    async def put(self, key: bytes, item: EncodedItem) -> None:
        self.num_failures += 1

    async def has(self, keys: Sequence[bytes]) -> list[bool]:
        return [False] * len(keys)

    async def evict(self, keys: Sequence[bytes]) -> None: ...
    async def close(self) -> None: ...


async def test_a_store_that_is_away_fails_nothing() -> None:
    async with an_encoder(store=BrokenStore()) as served:
        [result] = await served.client.encode(served.item(b"picture"))
        assert result.tier == Tier.CACHE_TIER_MISS
        assert (await served.stats()).num_store_failures > 0


async def test_files_on_their_way_are_bounded_by_bytes() -> None:
    async with an_encoder(gated=True, max_queue_bytes=10) as served:
        first = asyncio.create_task(served.client.encode(served.item(b"a" * 12)))
        await until(lambda: served.tower.num_waiting == 1)
        (refused,) = await served.client.encode(served.item(b"b"))
        assert (refused.error.reason, refused.error.limit) == ("QUEUE_FULL", "10")
        served.tower.gate.release(9)
        assert not (await first)[0].HasField("error"), "alone it is taken, whatever its size"
        results = await served.client.encode(served.item(b"c" * 6), served.item(b"d" * 4))
    assert not any(result.HasField("error") for result in results)


@pytest.mark.parametrize("data", [b"!", b"\0"], ids=["an error", "no numbers"])
async def test_what_options_make_impossible_is_the_requests_fault(data: bytes) -> None:
    async with an_encoder() as served:
        (own,) = await served.client.encode(served.item(data))
        (asked,) = await served.client.encode(served.item(data, options={"size": 3}))
        stats = await served.stats()
    assert (own.error.reason, asked.error.reason) == ("INTERNAL", "INVALID_REQUEST")
    assert asked.error.field == "processor_options_json"
    assert (stats.num_entries, stats.num_failed) == (0, 2)
