"""Encoders that drain, or fail in ways that nobody thought of, while a frontend uses them."""

from __future__ import annotations

import asyncio

import pytest
from support.fakes.encoder import FakeEncoder, encoder_pool
from support.grpc_server import serving
from support.waiting import until
from triptych.v1 import common_pb2
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver

MODEL = common_pb2.ModelInfo(name="m", fingerprint="f")


async def test_a_draining_encoder_gets_no_items_and_can_still_be_fetched_from() -> None:
    first, second = FakeEncoder(MODEL), FakeEncoder(MODEL)
    async with serving(first.register) as one, serving(second.register) as two:
        pool = Pool("encoder", StaticResolver([one, two]), lambda address: EncoderConnection(address, MODEL))
        task = asyncio.create_task(pool.run())
        try:
            await until(lambda: len(pool.ready) == 2)
            await first.health.set_ready(False)
            await until(lambda: [ready.address for ready in pool.ready] == [two])
            assert all(pool.ranked(bytes([number]))[0].address == two for number in range(20))
            found = pool.by_instance(first.instance.id)
            assert found is not None
            assert found.address == one
            await first.health.set_ready(True)
            await until(lambda: len(pool.ready) == 2)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_exception_in_the_watch_does_not_end_it_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, failures = FakeEncoder(MODEL), [ValueError("a bug"), KeyError("another")]
    describe = EncoderConnection._describe

    async def broken(self: EncoderConnection, timeout_s: float) -> None:
        if failures:
            raise failures.pop()
        await describe(self, timeout_s)

    monkeypatch.setattr(EncoderConnection, "_describe", broken)
    async with serving(encoder.register) as address, encoder_pool(address, MODEL) as pool:
        assert [ready.address for ready in pool.ready] == [address]
    assert not failures
