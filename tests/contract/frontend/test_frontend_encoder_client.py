"""The encoder client down its ladder, against fake encoders on real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fakes.encoder import SCOPE, FakeEncoder
from support.fakes.grpc_server import serving
from support.fakes.waiting import until
from triptych_common.media.key import media_key
from triptych_common.pb import common_pb2
from triptych_common.rpc.errors import InternalError, InvalidRequestError, QueueFullError, ServiceUnavailableError, TriptychError
from triptych_frontend.encoders import client as encoder_client
from triptych_frontend.encoders import pool as encoder_pool
from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.media.aliases import KnownMedia, UuidAliases
from triptych_frontend.media.item import AudioHeader, Expansion, ImageHeader, PreparedMedia

MODEL = common_pb2.ModelInfo(name="model", fingerprint="0" * 64)
IMAGE = common_pb2.MODALITY_IMAGE


class Encoders:
    """Fake encoders and a client of them."""

    def __init__(self, fakes: list[FakeEncoder], addresses: list[str], pool: EncoderPool, client: EncoderClient) -> None:
        self.fakes, self.addresses, self.pool, self.client = fakes, addresses, pool, client

    def home(self, item: PreparedMedia) -> tuple[FakeEncoder, FakeEncoder]:
        """The encoder that an item belongs to, and the other one."""
        index = self.addresses.index(self.pool.ranked(item.key)[0].address)
        return self.fakes[index], self.fakes[1 - index]


@asynccontextmanager
async def encoders(count: int = 2, num_tokens: int = 4, **options: float) -> AsyncIterator[Encoders]:
    fakes = [FakeEncoder(MODEL, lambda _: num_tokens) for _ in range(count)]
    async with AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(fake.register)) for fake in fakes]
        pool = EncoderPool(addresses, MODEL)
        client = EncoderClient(pool, options.get("encode_timeout_s", 5.0))
        watch = asyncio.create_task(pool.run())
        try:
            await _until(pool, count)
            yield Encoders(fakes, addresses, pool, client)
        finally:
            await client.close()
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)


def item(content: bytes | None = b"content", key: bytes = b"", num_embeds: int = 4) -> PreparedMedia:
    key = key or media_key(SCOPE, IMAGE, content or b"content")
    return PreparedMedia(IMAGE, key, content, "", Expansion("", num_embeds), "messages[0].content[0].media")


async def test_bytes_travel_once() -> None:
    async with encoders() as bench:
        for _ in range(2):
            encoding = await bench.client.ensure([item()])
            (ref,) = encoding.refs
            assert ref.lease_id
            assert ref.encoder_address in bench.addresses
            await encoding.close()
        home, other = bench.home(item())
        await bench.client.close()
    assert (home.counts, other.counts) == ({"key": 2, "bytes": 1}, {})
    assert bench.client.counts == {"bytes_sent": 1, "miss": 1, "local": 1}
    assert len(home.released) == 2


async def test_equal_items_of_a_call_are_encoded_once() -> None:
    async with encoders() as bench:
        encoding = await bench.client.ensure([item(), item(b"other"), item()])
        refs = encoding.refs
        assert refs[0] == refs[2] != refs[1]
        assert [found.result.num_tokens for found in encoding.results] == [4, 4, 4]
        await encoding.close()
    assert sum(fake.counts["bytes"] for fake in bench.fakes) == 2


async def test_references_are_there_before_the_embeddings() -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.gate = asyncio.Event()
        encoding = bench.client.begin([item()])
        await encoding.announced()
        assert home.counts["key"] == 1
        (ref,) = encoding.refs
        assert (ref.encoder_address, ref.lease_id) == (bench.pool.ranked(item().key)[0].address, "")
        home.gate.set()
        await encoding.wait()
        assert encoding.refs[0].lease_id
        await encoding.close()


@pytest.mark.parametrize(
    ("call_errors", "item_errors", "rungs"),
    [
        ([ServiceUnavailableError("away")], [], {"same_encoder": 1}),
        ([], [InternalError("broken")], {"same_encoder": 1}),
        ([ServiceUnavailableError("away")] * 2, [], {"same_encoder": 1, "other_encoder": 1}),
        ([], [QueueFullError("full")], {"other_encoder": 1}),
    ],
)
async def test_the_ladder(call_errors: list[TriptychError], item_errors: list[TriptychError], rungs: dict[str, int]) -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.call_errors, home.item_errors = list(call_errors), list(item_errors)
        encoding = await bench.client.ensure([item()])
        await encoding.close()
    counts = bench.client.counts
    assert {name: counts[name] for name in ("same_encoder", "other_encoder", "failed") if counts[name]} == rungs


async def test_after_the_last_rung_the_error_names_the_item() -> None:
    async with encoders() as bench:
        for fake in bench.fakes:
            fake.call_errors = [ServiceUnavailableError("away", retry_after_s=3)] * 9
        with pytest.raises(ServiceUnavailableError, match=r"messages\[0\].content\[0\].media: away") as caught:
            await bench.client.ensure([item()])
    assert (caught.value.field, caught.value.retry_after_s) == ("messages[0].content[0].media", 3)
    assert bench.client.counts["failed"] == 1


async def test_a_bad_item_is_tried_once() -> None:
    async with encoders() as bench:
        home, other = bench.home(item())
        home.item_errors = [InvalidRequestError("the image is truncated", field="data")]
        with pytest.raises(InvalidRequestError, match="truncated") as caught:
            await bench.client.ensure([item(), item(b"good")])
    assert caught.value.field == "messages[0].content[0].media"
    assert home.counts["bytes"] + other.counts["bytes"] <= 2


async def test_a_header_that_lied_is_told() -> None:
    async with encoders(num_tokens=3) as bench:
        home, _ = bench.home(item())
        with pytest.raises(InvalidRequestError, match="it has 3 embeddings, not 4"):
            await bench.client.ensure([item()])
    assert len(home.released) == 1


async def test_an_encoder_that_hangs_is_left_behind() -> None:
    async with encoders(encode_timeout_s=0.3) as bench:
        home, other = bench.home(item())
        home.gate = asyncio.Event()
        encoding = await bench.client.ensure([item()])
        await encoding.close()
    assert other.counts["bytes"] == 1
    assert bench.client.counts["other_encoder"] == 1


async def test_lost_embeddings_are_made_again_from_bytes_that_were_kept() -> None:
    async with encoders() as bench:
        items = [item()]
        encoding = await bench.client.ensure(items)
        home, _ = bench.home(items[0])
        home.held.clear()
        await encoding.again()
        assert home.counts["bytes"] == 2
        encoding.drop_bytes()
        assert items[0].content is None
        for fake in bench.fakes:
            fake.held.clear()
        with pytest.raises(TriptychError, match="no longer holds"):
            await encoding.again()
        await encoding.close()
    assert bench.client.counts["again"] == 2


async def test_closing_stops_what_runs() -> None:
    async with encoders() as bench:
        home, _ = bench.home(item())
        home.gate = asyncio.Event()
        encoding = bench.client.begin([item()])
        await encoding.announced()
        await encoding.close()
        home.gate.set()
        assert home.released == []


async def test_an_encoder_that_dies_is_forgotten_and_found_again() -> None:
    fake = FakeEncoder(MODEL, lambda _: 4)
    pool = EncoderPool(["127.0.0.1:1"], MODEL)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take"):
        pool.key_scope()
    async with serving(fake.register) as address:
        port = int(address.rpartition(":")[2])
        pool = EncoderPool([address], MODEL)
        watch = asyncio.create_task(pool.run())
        await _until(pool, 1)
    await _until(pool, 0)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take this request"):
        pool.key_scope()
    async with serving(fake.register, port):
        await _until(pool, 1)
        assert pool.key_scope() == SCOPE
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def _until(pool: EncoderPool, count: int) -> None:
    await until(lambda: len(pool.connected) == count, timeout_s=15)


async def test_an_encoder_with_other_embeddings_is_not_mixed_in() -> None:
    one, other = FakeEncoder(MODEL), FakeEncoder(MODEL, scope=b"another scope")
    async with serving(one.register) as first, serving(other.register) as second:
        pool = EncoderPool([first, second], MODEL)
        watch = asyncio.create_task(pool.run())
        await _until(pool, 1)
        await asyncio.sleep(0.3)
        assert len(pool.connected) == 1
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.binary(max_size=1)), max_size=30), st.integers(1, 4))
def test_aliases_know_the_last_content_of_each_name(steps: list[tuple[str, str, bytes]], limit: int) -> None:
    aliases, expected = UuidAliases(limit), {}
    for tenant, uuid, content in steps:
        aliases.learn(tenant, uuid, KnownMedia(IMAGE, content, ImageHeader(1, 1)))
        expected[tenant, uuid] = content
        assert len(aliases) <= limit
    for (tenant, uuid), content in expected.items():
        known = aliases.find(tenant, uuid)
        assert known is None or known.content_hash == content
    assert aliases.find("c", "x") is None


def test_a_corrected_alias_is_counted() -> None:
    aliases = UuidAliases(4)
    for content in (b"1", b"1", b"2"):
        aliases.learn("", "cat", KnownMedia(common_pb2.MODALITY_AUDIO, content, AudioHeader(1, 1)))
    assert aliases.num_corrections == 1


@given(st.binary(min_size=32, max_size=32))
def test_only_the_keys_of_a_lost_encoder_move(key: bytes) -> None:
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_check_ranking(key))
    finally:
        loop.close()


async def _check_ranking(key: bytes) -> None:
    from triptych_common.pb import encoder_pb2
    from triptych_frontend.encoders.pool import Encoder

    pool = EncoderPool([], MODEL)
    pool._encoders = [Encoder(f"10.0.0.{number}:1") for number in range(4)]
    for encoder in pool._encoders:
        encoder.description = encoder_pb2.DescribeResponse(key_scope=b"s")
    ranked = [encoder.address for encoder in pool.ranked(key)]
    assert len(set(ranked)) == 4
    next(encoder for encoder in pool._encoders if encoder.address == ranked[2]).description = None
    assert [encoder.address for encoder in pool.ranked(key)] == [ranked[0], ranked[1], ranked[3]]
    for encoder in pool._encoders:
        await encoder.channel.close()


async def test_an_encoder_that_hangs_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pool, "_DOUBT_TIMEOUT_S", 0.2)
    async with encoders(encode_timeout_s=0.3) as bench:
        home, other = bench.home(item())
        home.answers = asyncio.Event()
        encoding = await bench.client.ensure([item()])
        await encoding.close()
        await until(lambda: len(bench.pool.connected) == 1)
        again = await bench.client.ensure([item()])
        await again.close()
        home.answers.set()
        await _until(bench.pool, 2)
    assert home.counts["unanswered"] <= 4, "one call, and the questions whether it is there"
    assert (other.counts["bytes"], bench.client.counts["other_encoder"]) == (1, 1)
    assert not bench.client.counts["same_encoder"]


async def test_an_encoder_that_hangs_alone_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pool, "_DOUBT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(encoder_pool, "_GRACE_S", 0.2)
    async with encoders(1, encode_timeout_s=0.3) as bench:
        bench.fakes[0].answers = asyncio.Event()
        with pytest.raises(ServiceUnavailableError, match=r"messages\[0\]\.content\[0\]\.media: .* did not answer within 0\.3 s"):
            await bench.client.ensure([item()])
        await until(lambda: not bench.pool.connected)
        with pytest.raises(ServiceUnavailableError, match="did not answer in time"):
            await bench.pool.until_some()
        bench.fakes[0].answers.set()
        await _until(bench.pool, 1)
        await (await bench.client.ensure([item()])).close()


async def test_the_engine_need_not_wait_for_an_encoder_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_client, "_ASK_S", 0.05)
    async with encoders(1, encode_timeout_s=30) as bench:
        bench.fakes[0].answers = asyncio.Event()
        encoding = bench.client.begin([item()])
        await asyncio.wait_for(encoding.announced(), 1)
        assert encoding.refs[0].encoder_address == bench.addresses[0]
        await encoding.close()
