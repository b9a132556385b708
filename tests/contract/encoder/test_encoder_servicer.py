"""EncoderService over real gRPC, with a preprocessor and towers that have no model: keys, leases, evictions, the store."""

from __future__ import annotations

import grpc
import pytest
from support.drivers.encoder_of_fakes import BYTES_PER_TOKEN, BrokenStore, encoder_of_fakes
from triptych.v1 import common_pb2, encoder_pb2

Tier = encoder_pb2.CacheTier


async def test_an_item_is_computed_once_and_found_again() -> None:
    async with encoder_of_fakes() as served:
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


async def test_a_wrong_key_is_refused() -> None:
    async with encoder_of_fakes() as served:
        item = served.item(b"picture")
        item.data = b"another"
        [result] = await served.client.encode(item)
        assert (result.error.reason, result.error.field) == ("INVALID_REQUEST", "key")
        with_nan = served.item(b"x")
        with_nan.processor_options.fields["a"].number_value = float("nan")
        for changed in (
            encoder_pb2.EncodeItem(key=b"short", modality=common_pb2.MODALITY_IMAGE),
            with_nan,
            encoder_pb2.EncodeItem(key=item.key, modality=common_pb2.MODALITY_AUDIO),
        ):
            [result] = await served.client.encode(changed)
            assert result.error.reason == "INVALID_REQUEST"


async def test_options_and_salt_are_part_of_the_key() -> None:
    async with encoder_of_fakes() as served:
        results = await served.client.encode(
            served.item(b"x"),
            served.item(b"x", options={"size": 3}),
            served.item(b"x", tenant_salt="a"),
            served.item(b"x", tenant_salt="b"),
        )
        assert [result.tier for result in results] == [Tier.CACHE_TIER_MISS] * 4
        assert len({result.key for result in results}) == 4


async def test_leased_items_are_not_evicted_and_released_ones_are() -> None:
    async with encoder_of_fakes(capacity_bytes=10 * BYTES_PER_TOKEN) as served:
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
    async with encoder_of_fakes(capacity_bytes=BYTES_PER_TOKEN) as served:
        [result] = await served.client.encode(served.item(b"too long"))
        assert (result.error.reason, result.error.limit) == ("INVALID_REQUEST", str(BYTES_PER_TOKEN))


async def test_evicted_keys_are_told_to_watchers() -> None:
    async with encoder_of_fakes() as served:
        watch = served.client.stub.WatchEvictions(encoder_pb2.WatchEvictionsRequest())
        assert list((await watch.read()).keys) == []
        [a, b] = await served.client.encode(served.item(b"a"), served.item(b"b"))
        await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[a.lease_id]))
        evicted = await served.client.stub.Evict(encoder_pb2.EvictRequest(keys=[a.key, b.key]))
        assert evicted.num_evicted == 1
        assert list((await watch.read()).keys) == [a.key]
        await served.client.stub.Release(encoder_pb2.ReleaseRequest(lease_ids=[b.lease_id]))
        assert list((await watch.read()).keys) == [b.key], "leased ones go when their last lease ends"
        watch.cancel()


async def test_leases_have_limits() -> None:
    async with encoder_of_fakes() as served:
        for lease_s in (0.5, 601.0):
            with pytest.raises(grpc.aio.AioRpcError, match="lease_s"):
                await served.client.encode(lease_s=lease_s)


async def test_a_store_that_is_away_fails_nothing() -> None:
    async with encoder_of_fakes(store=BrokenStore()) as served:
        [result] = await served.client.encode(served.item(b"picture"))
        assert result.tier == Tier.CACHE_TIER_MISS
        assert (await served.stats()).num_store_failures > 0
