"""Items on their way through the encoder: joined, batched, refused, cancelled, at random."""

from __future__ import annotations

import asyncio
import random

import pytest
from support.drivers.encoder_of_fakes import BYTES_PER_TOKEN, HIDDEN, encoder_of_fakes
from support.waiting import until
from triptych.v1 import encoder_pb2
from triptych_common.rpc.principal import Principal

Tier = encoder_pb2.CacheTier


async def test_the_same_item_at_once_is_joined() -> None:
    async with encoder_of_fakes(gated=True) as served:
        calls = [asyncio.create_task(served.client.encode(served.item(b"same"))) for _ in range(5)]
        await until(lambda: served.pipeline.counters.num_joined == 4)
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        tiers = sorted([result.tier for [result] in await asyncio.gather(*calls)])
        assert tiers == [Tier.CACHE_TIER_MISS] + [Tier.CACHE_TIER_JOINED] * 4
        assert served.tower.batches == [1]
        assert (await served.stats()).num_leases == 5


async def test_one_bad_item_fails_alone() -> None:
    async with encoder_of_fakes() as served:
        results = await served.client.encode(
            served.item(b"good"), served.item(b"bad one"), served.item(b"!stumbles"), served.item(b"fine")
        )
        assert [result.error.reason for result in results] == ["", "INVALID_REQUEST", "INTERNAL", ""]
        assert "stumbled" not in results[2].error.message, "internal errors do not leak"
        assert (await served.stats()).num_failed == 2


async def test_a_failing_batch_is_tried_one_by_one() -> None:
    async with encoder_of_fakes(gated=True) as served:
        assert served.tower.gate is not None
        calls = [asyncio.create_task(served.client.encode(served.item(b"first")))]
        await until(lambda: served.tower.num_waiting == 1)
        calls += [asyncio.create_task(served.client.encode(served.item(data))) for data in (b"a", b"!b", b"c")]
        await until(lambda: served.device_loop.queue_length == 3)
        served.tower.gate.release(10)
        results = [result for [result] in await asyncio.gather(*calls)]
        assert [bool(result.error.reason) for result in results] == [False, False, True, False]
        assert served.tower.batches == [1, 3, 1, 1, 1]


async def test_a_full_queue_refuses_at_once() -> None:
    async with encoder_of_fakes(gated=True, max_queue=2) as served:
        calls = [asyncio.create_task(served.client.encode(served.item(data))) for data in (b"a", b"b")]
        await until(lambda: len(served.pipeline.queue) == 2)
        [refused] = await served.client.encode(served.item(b"c"))
        assert refused.error.reason == "QUEUE_FULL"
        assert refused.error.retry_after_s > 0
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        await asyncio.gather(*calls)
        [accepted] = await served.client.encode(served.item(b"c"))
        assert not accepted.HasField("error")


async def test_what_nobody_waits_for_is_not_computed() -> None:
    async with encoder_of_fakes(gated=True) as served:
        first = asyncio.create_task(served.client.encode(served.item(b"first")))
        await until(lambda: served.tower.num_waiting == 1)
        given_up = asyncio.create_task(served.client.encode(served.item(b"given up")))
        await until(lambda: served.device_loop.queue_length == 1)
        given_up.cancel()
        await until(lambda: len(served.pipeline.queue) == 1)
        assert served.tower.gate is not None
        served.tower.gate.release(10)
        await first
        [again] = await served.client.encode(served.item(b"given up"))
        assert again.tier == Tier.CACHE_TIER_MISS
        assert served.tower.batches == [1, 1]


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_items_leaves_nothing_behind(seed: int) -> None:
    """Encodes, fetches, cancellations, releases and evictions at random, on a cache that holds a few items: all end in a reply."""
    rng = random.Random(seed)
    files = [bytes([65 + index]) * rng.randint(1, 8) for index in range(12)] + [b"bad", b"!x"]
    allowed = {"", "QUEUE_FULL", "MEDIA_NOT_FOUND", "INVALID_REQUEST", "INTERNAL", "EMBEDDING_UNAVAILABLE"}
    async with encoder_of_fakes(capacity_bytes=24 * BYTES_PER_TOKEN, max_queue=6) as served:

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
        await until(lambda: len(served.pipeline.queue) == 0)
        [last] = await served.client.encode(served.item(b"and one more"), lease_s=1.0)
        assert last.error.reason in ("", "QUEUE_FULL")
        stats = await served.stats()
        assert stats.used_bytes <= stats.capacity_bytes


async def test_files_on_their_way_are_bounded_by_bytes() -> None:
    async with encoder_of_fakes(gated=True, max_queue_bytes=10) as served:
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
    async with encoder_of_fakes() as served:
        (own,) = await served.client.encode(served.item(data))
        (asked,) = await served.client.encode(served.item(data, options={"size": 3}))
        stats = await served.stats()
    assert (own.error.reason, asked.error.reason) == ("INTERNAL", "INVALID_REQUEST")
    assert asked.error.field == "processor_options"
    assert (stats.num_entries, stats.num_failed) == (0, 2)


async def test_a_tenants_items_leave_room_for_anothers_and_do_not_delay_them() -> None:
    async with encoder_of_fakes(gated=True, max_queue=32, num_threads=1) as served:
        flood, quiet = (Principal(name).scoped_salt("") for name in ("flood", "quiet"))
        assert served.tower.gate is not None

        async def encode(name: str, salt: str) -> str:
            [result] = await served.client.encode(served.item(name.encode(), tenant_salt=salt))
            return str(result.error.reason)

        calls = [asyncio.create_task(encode(f"item {number}", flood)) for number in range(40)]
        await until(lambda: sum(call.done() for call in calls) == 24)
        assert {call.result() for call in calls if call.done()} == {"QUEUE_FULL"}
        other = asyncio.create_task(encode("own", quiet))
        await until(lambda: served.pipeline.queue._prepared.num_waiting == 9)
        while not other.done():
            served.tower.gate.release()
            await asyncio.sleep(0.01)
        assert other.result() == ""
        # Eight of the flood were in work, and those that wait are behind the other tenant's.
        assert served.tower.encoded.index(b"own") <= 8
        served.tower.gate.release(100)
        await asyncio.gather(*calls)
