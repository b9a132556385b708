"""The encoders that a frontend uses: which of them are there, and which one a key belongs to."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.encoder_client import MODEL, encoders, item, until_connected
from support.fakes.encoder import SCOPE, FakeEncoder
from support.fakes.grpc_server import serving
from support.fakes.waiting import until
from triptych_common.rpc.errors import ServiceUnavailableError
from triptych_frontend.encoders import pool as encoder_pool
from triptych_frontend.encoders.encoding import ensure
from triptych_frontend.encoders.pool import EncoderPool


async def test_an_encoder_that_dies_is_forgotten_and_found_again() -> None:
    fake = FakeEncoder(MODEL, lambda _: 4)
    pool = EncoderPool(["127.0.0.1:1"], MODEL)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take"):
        pool.key_scope()
    async with serving(fake.register) as address:
        port = int(address.rpartition(":")[2])
        pool = EncoderPool([address], MODEL)
        watch = asyncio.create_task(pool.run())
        await until_connected(pool, 1)
    await until_connected(pool, 0)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take this request"):
        pool.key_scope()
    async with serving(fake.register, port):
        await until_connected(pool, 1)
        assert pool.key_scope() == SCOPE
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_an_encoder_with_other_embeddings_is_not_mixed_in() -> None:
    one, other = FakeEncoder(MODEL), FakeEncoder(MODEL, scope=b"another scope")
    async with serving(one.register) as first, serving(other.register) as second:
        pool = EncoderPool([first, second], MODEL)
        watch = asyncio.create_task(pool.run())
        await until(lambda: "its embeddings differ" in pool.none_left().message)
        assert len(pool.connected) == 1
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


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
        encoding = await ensure(bench.client, [item()])
        await encoding.close()
        await until(lambda: len(bench.pool.connected) == 1)
        again = await ensure(bench.client, [item()])
        await again.close()
        home.answers.set()
        await until_connected(bench.pool, 2)
    assert home.counts["unanswered"] <= 4, "one call, and the questions whether it is there"
    assert (other.counts["bytes"], bench.client.counts["other_encoder"]) == (1, 1)
    assert not bench.client.counts["same_encoder"]


async def test_an_encoder_that_hangs_alone_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_pool, "_DOUBT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(encoder_pool, "_GRACE_S", 0.2)
    async with encoders(1, encode_timeout_s=0.3) as bench:
        bench.fakes[0].answers = asyncio.Event()
        with pytest.raises(ServiceUnavailableError, match=r"messages\[0\]\.content\[0\]\.media: .* did not answer within 0\.3 s"):
            await ensure(bench.client, [item()])
        await until(lambda: not bench.pool.connected)
        with pytest.raises(ServiceUnavailableError, match="did not answer in time"):
            await bench.pool.until_some()
        bench.fakes[0].answers.set()
        await until_connected(bench.pool, 1)
        await (await ensure(bench.client, [item()])).close()
