"""Fetches of embeddings: what they wait for, in chunks, and how they fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.drivers.encoder_of_fakes import BYTES_PER_TOKEN, HIDDEN, BrokenStore, encoder_of_fakes
from support.waiting import until
from triptych.v1 import encoder_pb2
from triptych_encoder.cache.item import EncodedItem

Tier = encoder_pb2.CacheTier


async def test_a_key_without_bytes_is_asked_for_and_fetches_wait_for_it() -> None:
    async with encoder_of_fakes() as served:
        item = served.item(b"picture")
        [result] = await served.client.encode(served.item(b"picture", with_data=False))
        assert result.error.code == grpc.StatusCode.NOT_FOUND.value[0]
        fetching = asyncio.create_task(served.client.fetch(item.key))
        await asyncio.sleep(0.05)
        assert not fetching.done()
        await served.client.encode(item)
        assert (await fetching)["embeds"].shape == (7, HIDDEN)


async def test_a_key_that_nobody_announced_is_not_waited_for() -> None:
    async with encoder_of_fakes() as served:
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await asyncio.wait_for(served.client.fetch(served.item(b"unheard of").key), 5)


async def test_a_fetch_gives_up_in_time() -> None:
    async with encoder_of_fakes(gated=True) as served:
        call = asyncio.create_task(served.client.encode(served.item(b"slow")))
        await until(lambda: len(served.pipeline.queue) == 1)
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await served.client.fetch(served.item(b"slow").key, timeout_s=0.05)
        assert served.tower.gate is not None
        served.tower.gate.release(1)
        [result] = await call
        assert not result.HasField("error")


async def test_large_tensors_come_in_chunks() -> None:
    async with encoder_of_fakes(capacity_bytes=1 << 24) as served:
        data = bytes(range(1, 251)) * 40
        [result] = await served.client.encode(served.item(data))
        request = encoder_pb2.FetchRequest(keys=[result.key], chunk_bytes=64 << 10)
        sizes = [len(chunk.data) async for chunk in served.client.stub.Fetch(request)]
        assert sum(sizes) == len(data) * BYTES_PER_TOKEN
        assert max(sizes) == 64 << 10
        assert (await served.client.fetch(result.key))["embeds"][:, 0].tolist() == list(data)


@pytest.mark.parametrize("options", [{"chunk_bytes": 1}, {"chunk_bytes": 4 << 20}, {"timeout_s": -1.0}])
async def test_fetch_options_have_limits(options: dict[str, Any]) -> None:
    async with encoder_of_fakes() as served:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await served.client.fetch(b"k" * 32, **options)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_fetch_of_an_item_that_fails_says_so_and_goes_on() -> None:
    async with encoder_of_fakes(gated=True) as served:
        good, bad = served.item(b"good"), served.item(b"!stumbles")
        calls = [asyncio.create_task(served.client.encode(item)) for item in (bad, good)]
        await until(lambda: len(served.pipeline.queue) == 2)
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


async def test_fetches_of_a_key_whose_bytes_are_refused_fail_at_once() -> None:
    async with encoder_of_fakes(gated=True, max_queue=1) as served:
        busy = asyncio.create_task(served.client.encode(served.item(b"busy")))
        await until(lambda: len(served.pipeline.queue) == 1)
        for _ in range(2):  # two frontends are about to send the item
            await served.client.encode(served.item(b"picture", with_data=False), lease_s=60.0)
        fetching = asyncio.create_task(served.client.fetch(served.item(b"picture").key, timeout_s=60.0))
        [refused] = await served.client.encode(served.item(b"picture"))
        assert refused.error.reason == "QUEUE_FULL"
        await served.client.stub.Lookup(encoder_pb2.LookupRequest())
        assert not fetching.done(), "the other frontend's bytes may still come"
        await served.client.encode(served.item(b"picture"))
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await asyncio.wait_for(fetching, 5)
        assert served.tower.gate is not None
        served.tower.gate.release(1)
        await busy


async def test_an_encoder_that_encodes_no_more_keeps_no_fetch_waiting() -> None:
    async with encoder_of_fakes() as served:
        await served.client.encode(served.item(b"picture", with_data=False), lease_s=60.0)
        fetching = asyncio.create_task(served.client.fetch(served.item(b"picture").key, timeout_s=60.0))
        await served.client.stub.Lookup(encoder_pb2.LookupRequest())
        served.servicer.refuse("the encoder is draining")
        with pytest.raises(LookupError, match="EMBEDDING_UNAVAILABLE"):
            await asyncio.wait_for(fetching, 5)


class _StoreOfOthers(BrokenStore):
    """A second tier that another encoder writes to."""

    def __init__(self) -> None:
        self.held: dict[bytes, EncodedItem] = {}

    async def get(self, key: bytes) -> EncodedItem | None:
        return self.held.get(key)

    async def put(self, key: bytes, item: EncodedItem) -> None:
        self.held[key] = item


async def test_a_fetch_goes_on_when_another_encoder_has_stored_the_announced_key() -> None:
    store = _StoreOfOthers()
    async with encoder_of_fakes(store=store) as other, encoder_of_fakes(store=store) as served:
        item = served.item(b"picture")
        await served.client.encode(served.item(b"picture", with_data=False))
        fetching = asyncio.create_task(served.client.fetch(item.key))
        await asyncio.sleep(0.05)
        await other.client.encode(item)
        await until(lambda: item.key in store.held)
        [result] = await served.client.encode(item)
        assert result.tier == Tier.CACHE_TIER_SHARED
        assert (await asyncio.wait_for(fetching, 2))["embeds"].shape == (7, HIDDEN)
