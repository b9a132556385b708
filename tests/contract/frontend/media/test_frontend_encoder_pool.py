"""The encoders that a frontend uses: which of them are there, and which one a key belongs to."""

from __future__ import annotations

import asyncio

import pytest
from support.drivers.encoder_client import MODEL, encoders, ensure, item, until_connected
from support.fakes.encoder import SCOPE, FakeEncoder
from support.grpc_server import serving
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych_common.cluster import encoder as cluster_encoder
from triptych_frontend.encoders.pool import EncoderPool


async def test_an_encoder_that_dies_is_forgotten_and_found_again() -> None:
    fake = FakeEncoder(MODEL, lambda _: 4)
    pool = EncoderPool(["127.0.0.1:1"], MODEL)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take"):
        pool.embedding_fingerprint()
    async with serving(fake.register) as address:
        port = int(address.rpartition(":")[2])
        pool = EncoderPool([address], MODEL)
        watch = asyncio.create_task(pool.run())
        await until_connected(pool, 1)
    await until_connected(pool, 0)
    with pytest.raises(ServiceUnavailableError, match="no encoder can take this request"):
        pool.embedding_fingerprint()
    async with serving(fake.register, port):
        await until_connected(pool, 1)
        assert pool.embedding_fingerprint() == SCOPE
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_an_encoder_with_other_embeddings_is_not_mixed_in() -> None:
    one, other = FakeEncoder(MODEL), FakeEncoder(MODEL, scope=b"another scope")
    async with serving(one.register) as first, serving(other.register) as second:
        pool = EncoderPool([first, second], MODEL)
        watch = asyncio.create_task(pool.run())
        await until(lambda: "its embeddings differ" in pool.none_left().message)
        assert len(pool.ready) == 1
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def test_an_encoder_that_hangs_is_left_for_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_encoder, "_DOUBT_TIMEOUT_S", 0.2)
    async with encoders(encode_timeout_s=0.3) as bench:
        home, other = bench.home(item())
        home.answers = asyncio.Event()
        encoding = await ensure(bench.client, [item()])
        await encoding.close()
        await until(lambda: len(bench.pool.ready) == 1)
        again = await ensure(bench.client, [item()])
        await again.close()
        home.answers.set()
        await until_connected(bench.pool, 2)
    assert home.counts["unanswered"] <= 4, "one call, and the questions whether it is there"
    assert (other.counts["bytes"], bench.client.counts["other_encoder"]) == (1, 1)
    assert not bench.client.counts["same_encoder"]


async def test_an_encoder_that_hangs_alone_is_an_error_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_encoder, "_DOUBT_TIMEOUT_S", 0.2)
    async with encoders(1, encode_timeout_s=0.3) as bench:
        bench.fakes[0].answers = asyncio.Event()
        with pytest.raises(ServiceUnavailableError, match=r"messages\[0\]\.content\[0\]\.media: .* did not answer within 0\.3 s"):
            await ensure(bench.client, [item()])
        await until(lambda: not bench.pool.ready)
        with pytest.raises(ServiceUnavailableError, match="did not answer in time"):
            await bench.pool.until_ready(0.1)
        bench.fakes[0].answers.set()
        await until_connected(bench.pool, 1)
        await (await ensure(bench.client, [item()])).close()
