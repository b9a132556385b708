"""One engine computes a prompt, another one goes on: with its blocks over real gRPC, or without them if anything goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.builders.engine import a_request
from support.drivers.engine_service import a_message
from support.drivers.kv_transfer import NUM_BLOCKS, PROMPT, SLOT_BYTES, Two, two_engines
from triptych.v1 import engine_pb2, kv_pb2, kv_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_engine.kv_transfer import fetcher as fetching
from triptych_engine.kv_transfer import servicer as serving_blocks


@pytest.fixture(params=["shared memory", "gRPC"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "gRPC":
        monkeypatch.setattr(fetching, "boot_id", lambda: "another host")
    return str(request.param)


async def test_the_second_engine_computes_only_what_is_no_full_block(way: str):
    async with two_engines() as engines:
        last = await engines.go_on(await engines.first_token())
        assert last.usage.cached_tokens == 4 * NUM_BLOCKS
        assert engines.fetcher.statistics.num_blocks == NUM_BLOCKS
        assert not engines.fetcher.statistics.failures
        assert bool(engines.prefill.sharing.servicer.num_bytes) == (way == "gRPC")


async def test_what_is_here_already_is_not_fetched(way: str):
    async with two_engines() as engines:
        first = await engines.first_token()
        await engines.go_on(first)
        await engines.go_on(first)
        longer = [*PROMPT, 7, 8, 9, 10, 11, 12]
        await engines.go_on(await engines.first_token(longer), longer)
        assert engines.fetcher.statistics.num_blocks == NUM_BLOCKS + 2


async def test_equal_prompts_that_come_together_are_fetched_once(way: str):
    async with two_engines() as engines:
        first = await engines.first_token()
        await asyncio.gather(*(fetch(engines, PROMPT) for _ in range(5)))
        assert engines.fetcher.statistics.num_blocks == NUM_BLOCKS
        await engines.go_on(first)


def names(engines: Two) -> list[bytes]:
    """Of the prompt's blocks."""
    return engines.decode.core._scheduler.kv_cache.prefix_hashes(a_request("x", PROMPT, max_tokens=2))


async def fetch(engines: Two, prompt: list[int], source: str = "this engine") -> None:
    await engines.fetcher.fetch(a_request("x", prompt, max_tokens=2), source)


@pytest.mark.parametrize("number", [0, 9, NUM_BLOCKS - 1])
async def test_a_block_that_was_damaged_is_computed(number: int, way: str):
    async with two_engines() as engines:
        first = await engines.first_token()
        hashes = names(engines)
        engines.prefill_tier.bytes_of(engines.prefill_tier._ready[hashes[number]])[0][3] ^= 1
        last = await engines.go_on(first)
        assert last.usage.cached_tokens == 4 * number
        assert engines.fetcher.statistics.failures == {"corrupt": 1}
        assert engines.decode_tier.statistics.num_corrupt == 1


async def test_blocks_that_mean_something_else_are_not_taken(way: str):
    async with two_engines(layout="another dtype") as engines:
        assert not (await engines.go_on(await engines.first_token())).usage.cached_tokens
        assert engines.fetcher.statistics.failures == {"failed_precondition": 1}


async def test_an_unknown_engine_is_not_dialled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "_CONNECT_WAIT_S", 0.05)
    async with two_engines() as engines:
        await engines.go_on(await engines.first_token(), source="127.0.0.1:1")
        assert engines.fetcher.statistics.failures == {"unknown_source": 1}


async def test_blocks_that_are_no_longer_there_are_computed(way: str):
    async with two_engines() as engines:
        first = await engines.first_token()
        engines.prefill_tier.clear()
        await engines.go_on(first)
        assert engines.fetcher.statistics.failures == {"not_there": 1}


async def test_a_tier_without_room_takes_what_fits(way: str):
    async with two_engines(num_slots=8) as engines:
        last = await engines.go_on(await engines.first_token())
        assert last.usage.cached_tokens == 32
        assert engines.decode.core._scheduler.kv_cache.pool.num_free_blocks == 64


@pytest.mark.parametrize("how", ["another file", "no file of a process", "slots that are not there", "fewer slots"])
async def test_memory_that_a_peer_names_wrongly_is_not_read(how: str, monkeypatch: pytest.MonkeyPatch):
    whole = serving_blocks.KvServicer.Hold

    async def wrong(
        self: serving_blocks.KvServicer, request: kv_pb2.HoldRequest, context: grpc.aio.ServicerContext
    ) -> kv_pb2.HoldResponse:
        held = await whole(self, request, context)
        match how:
            case "another file":
                held.host.inode += 1
            case "no file of a process":
                held.host.path = "/etc/passwd"
            case "slots that are not there":
                held.host.slots[3] = 1 << 30
            case "fewer slots":
                del held.host.slots[3:]
        return held

    monkeypatch.setattr(serving_blocks.KvServicer, "Hold", wrong)
    async with two_engines() as engines:
        last = await engines.go_on(await engines.first_token())
        by_grpc = how in ("another file", "no file of a process")
        assert bool(engines.prefill.sharing.servicer.num_bytes) == by_grpc
        assert last.usage.cached_tokens == (4 * NUM_BLOCKS if by_grpc else 12)


async def test_a_transfer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "_TRANSFER_S", 0.3)

    async def slow(self: serving_blocks.KvServicer, request: kv_pb2.HoldRequest, context: object) -> kv_pb2.HoldResponse:
        await asyncio.sleep(1)
        return kv_pb2.HoldResponse()

    monkeypatch.setattr(serving_blocks.KvServicer, "Hold", slow)
    async with two_engines() as engines:
        assert not (await engines.go_on(await engines.first_token())).usage.cached_tokens
        assert engines.fetcher.statistics.failures == {"timeout": 1}


@pytest.mark.parametrize("how", ["cut", "an error", "silence"])
async def test_a_transfer_that_breaks_off_leaves_what_came(how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetching, "boot_id", lambda: "another host")
    monkeypatch.setattr(fetching, "_ANSWER_S", 0.3)
    monkeypatch.setattr(serving_blocks, "_CHUNK_BYTES", SLOT_BYTES * 5 // 2)
    whole = serving_blocks.KvServicer.Read

    async def broken(
        self: serving_blocks.KvServicer, request: kv_pb2.ReadRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[kv_pb2.ReadResponse]:
        sent = 0
        async for response in whole(self, request, context):
            if sent == 3:
                if how == "an error":
                    raise RuntimeError("a disk is full")
                if how == "silence":
                    await asyncio.sleep(0.6)
                return
            sent += 1
            yield response

    monkeypatch.setattr(serving_blocks.KvServicer, "Read", broken)
    async with two_engines() as engines:
        last = await engines.go_on(await engines.first_token())
        assert last.usage.cached_tokens == 4 * 7  # of 7.5 blocks
        assert sum(engines.fetcher.statistics.failures.values()) == 1


async def test_an_abort_during_the_transfer_ends_the_request(monkeypatch: pytest.MonkeyPatch):
    entered = asyncio.Event()

    async def hanging(*_: object) -> None:
        entered.set()
        await asyncio.sleep(60)

    async with two_engines() as engines:
        first = await engines.first_token()
        monkeypatch.setattr(engines.fetcher, "_fetch", hanging)
        message = a_message("next", [*PROMPT, *first])
        message.num_output_tokens, message.kv_source = 1, "this engine"
        call = engines.decode.stub.Generate(engine_pb2.GenerateRequest(request=message))
        reading = asyncio.create_task(call.read())
        await entered.wait()
        call.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await engines.decode.until_idle()


async def test_a_lease_ends_by_itself_and_nothing_is_read_after_it(monkeypatch: pytest.MonkeyPatch):
    async with two_engines() as engines:
        await engines.first_token()
        now_s = 100.0
        monkeypatch.setattr(engines.prefill.sharing.servicer, "_clock", lambda: now_s)
        hashes = names(engines)
        async with open_channel(engines.prefill.address) as channel:
            stub = kv_pb2_grpc.KvServiceStub(channel)
            held = await stub.Hold(kv_pb2.HoldRequest(block_hashes=hashes, layout="layout"))
            assert len(engines.prefill_tier._pins) == NUM_BLOCKS
            data = b"".join([chunk.data async for chunk in stub.Read(kv_pb2.ReadRequest(lease_id=held.lease_id, first_block=20))])
            assert len(data) == 2 * SLOT_BYTES
            now_s += held.lease_s + 0.1
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Read(kv_pb2.ReadRequest(lease_id=held.lease_id)).read()
            assert caught.value.code() == grpc.StatusCode.NOT_FOUND
            assert not engines.prefill_tier._pins
            await stub.Release(kv_pb2.KvServiceReleaseRequest(lease_id=held.lease_id))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_held_read_and_damaged_a_text_is_the_same(data: st.DataObject):
    """Prompts with common beginnings, computed in any order, moved with and without damage, cleared tiers, tiers of any size."""

    async def run() -> None:
        async with two_engines(num_slots=data.draw(st.sampled_from([4, 16, 64]))) as engines:
            for _ in range(data.draw(st.integers(1, 4))):
                prompt = PROMPT[: data.draw(st.integers(1, 60))] + data.draw(st.lists(st.integers(0, 49), max_size=9))
                first = await engines.first_token(prompt)
                for tier in (engines.prefill_tier, engines.decode_tier):
                    slots = sorted(tier._ready.values())
                    if slots and data.draw(st.integers(0, 2)) == 0:
                        tier.bytes_of(data.draw(st.sampled_from(slots)))[0][data.draw(st.integers(0, 31))] ^= 1
                    if data.draw(st.integers(0, 5)) == 0:
                        tier.clear()
                await engines.go_on(first, prompt)
            await engines.decode.until_idle()
            await engines.prefill.until_idle()

    asyncio.run(run())
