"""Pools over connections that tests move by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.waiting import until
from triptych.errors import ServiceUnavailableError, TriptychError
from triptych.v1 import common_pb2
from triptych_common.cluster import connection as connection_module
from triptych_common.cluster.connection import Connection, ConnectionRefusedByUsError
from triptych_common.cluster.pool import Pool, rendezvous
from triptych_common.cluster.resolver import Update

MODEL = common_pb2.ModelInfo(name="m", fingerprint="f")


class ManualResolver:
    """Reports what a test says."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = addresses
        self._update: Update | None = None
        self.num_hints = 0

    async def watch(self, update: Update) -> None:
        self._update = update
        update(self._addresses)
        await asyncio.Event().wait()

    def resolve_now(self) -> None:
        self.num_hints += 1

    def report(self, *addresses: str) -> None:
        assert self._update is not None
        self._update(addresses)


class FakeConnection(Connection):
    """Its service is there from its first life on, until the test says how that ends."""

    def __init__(self, address: str, instance_id: str | None = None) -> None:
        super().__init__("engine", address)
        self._service_id = instance_id or address
        self.num_lives = 0
        self.num_requests = 0
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.was_disconnected = 0

    @property
    def load(self) -> int:
        return self.num_requests

    async def serve(self) -> str:
        self.num_lives += 1
        self.end = asyncio.get_running_loop().create_future()
        self.connected(common_pb2.Instance(id=self._service_id, state=common_pb2.SERVER_STATE_SERVING), MODEL)
        return await self.end

    async def disconnected(self) -> None:
        self.was_disconnected += 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)


@asynccontextmanager
async def a_pool(
    *addresses: str, instances: dict[str, str] | None = None
) -> AsyncIterator[tuple[Pool[FakeConnection], ManualResolver]]:
    resolver = ManualResolver(*addresses)
    pool = Pool("engine", resolver, lambda address: FakeConnection(address, (instances or {}).get(address)))
    task = asyncio.create_task(pool.run())
    try:
        await until(lambda: all(c.is_connected for c in pool.connections) and len(pool.connections) == len(addresses))
        yield pool, resolver
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not pool.connections
        assert not pool.ready


def addresses(connections: Sequence[Connection]) -> list[str]:
    return [connection.address for connection in connections]


async def test_a_lost_service_is_out_at_once_and_in_again_when_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.1)
    async with a_pool("a:1", "b:1") as (pool, resolver):
        before = pool.ready
        lost = pool.connections[0]
        lost.end.set_exception(ServiceUnavailableError("the engine at a:1 is gone"))
        await until(lambda: lost.was_disconnected == 1)
        assert addresses(pool.ready) == ["b:1"]
        assert "a:1: the engine at a:1 is gone" in pool.none_left().message
        assert resolver.num_hints == 1
        await until(lambda: addresses(pool.ready) == ["a:1", "b:1"])
        assert addresses(before) == ["a:1", "b:1"], "a snapshot stays as it was"


async def test_all_that_was_carried_hears_of_the_loss_although_one_listener_fails() -> None:
    class Listener:
        heard: TriptychError | None = None

        def lost(self, error: TriptychError) -> None:
            self.heard = error
            raise RuntimeError("a bug")

    async with a_pool("a:1") as (pool, _):
        listeners, error = [Listener(), Listener()], ServiceUnavailableError("gone")
        pool.connections[0].tell_lost(listeners, error)
    assert [listener.heard for listener in listeners] == [error, error]


async def test_an_error_of_our_own_ends_one_life_and_not_the_supervision() -> None:
    async with a_pool("a:1") as (pool, _):
        broken = pool.connections[0]
        broken.end.set_exception(RuntimeError("a bug"))
        await until(lambda: broken.num_lives == 2 and broken.is_ready)
        assert addresses(pool.ready) == ["a:1"]


async def test_a_service_that_is_not_the_one_wanted_is_not_used() -> None:
    async with a_pool("a:1", "b:1") as (pool, _):
        stranger = pool.connections[0]
        with pytest.raises(ConnectionRefusedByUsError, match="fingerprint other"):
            stranger.check_fingerprint(common_pb2.ModelInfo(name="x", fingerprint="other"), MODEL)


async def test_a_service_with_other_weights_is_not_used() -> None:
    def with_weights(weights: str) -> common_pb2.ModelInfo:
        return common_pb2.ModelInfo(name="x", fingerprint="same", weights_fingerprint=weights)

    async with a_pool("a:1") as (pool, _):
        connection = pool.connections[0]
        with pytest.raises(ConnectionRefusedByUsError, match=r"it has other weights of x \(fingerprint b, not a\)"):
            connection.check_fingerprint(with_weights("b"), with_weights("a"))
        # A service without the weights goes with any.
        for theirs, ours in (("a", "a"), ("", "a"), ("a", "")):
            connection.check_fingerprint(with_weights(theirs), with_weights(ours))


async def test_one_that_drains_gets_no_work_and_can_still_be_found() -> None:
    async with a_pool("a:1", "b:1") as (pool, _):
        draining = pool.connections[0]
        draining.goes_away()
        assert addresses(pool.ready) == ["b:1"]
        assert pool.by_instance("a:1") is draining
        assert [endpoint.state for endpoint in pool.endpoints] == [
            common_pb2.SERVER_STATE_DRAINING,
            common_pb2.SERVER_STATE_SERVING,
        ]


async def test_an_address_that_goes_is_left_once_its_work_is_done() -> None:
    async with a_pool("a:1", "b:1") as (pool, resolver):
        leaving = pool.connections[0]
        leaving.num_requests = 1
        resolver.report("b:1", "c:1")
        assert addresses(pool.ready)[:1] == ["b:1"]
        await until(lambda: addresses(pool.ready) == ["b:1", "c:1"])
        assert leaving.is_connected, "its request goes on"
        leaving.num_requests = 0
        await until(lambda: not leaving.is_connected)


async def test_two_addresses_of_one_service_count_once() -> None:
    async with a_pool("127.0.0.1:1", "[::1]:1", instances={"127.0.0.1:1": "same", "[::1]:1": "same"}) as (pool, _):
        assert addresses(pool.ready) == ["127.0.0.1:1"]


async def test_one_in_doubt_comes_after_all_others() -> None:
    async with a_pool("a:1", "b:1", "c:1") as (pool, _):
        pool.connections[1].num_requests = 5
        pool.connections[2].num_requests = 5
        assert pool.least_loaded() is pool.connections[0]
        pool.connections[0].doubt()
        assert pool.least_loaded() is pool.connections[1]
        for key in (b"k%d" % number for number in range(20)):
            assert pool.ranked(key)[-1] is pool.connections[0]
        assert pool.least_loaded(lambda one: one not in pool.connections[1:]) is pool.connections[0]


async def test_waiting_for_a_service_that_is_starting() -> None:
    async with a_pool() as (pool, resolver):
        with pytest.raises(ServiceUnavailableError, match="none is known"):
            await pool.until_ready(0.01)
        waiting = asyncio.create_task(pool.wait_for_instance("late", 20))
        await asyncio.sleep(0)
        pool._connect = lambda address: FakeConnection(address, "late")
        resolver.report("a:1")
        found = await waiting
        assert found is pool.connections[0]
        await pool.until_ready(20)
        assert await pool.wait_for_instance("never", 0.01) is None


@given(st.sets(st.text("abcdefgh", min_size=1), min_size=2, max_size=6), st.binary(max_size=40))
def test_when_one_goes_only_its_own_keys_move(names: set[str], key: bytes) -> None:
    def first(candidates: set[str]) -> str:
        return max(candidates, key=lambda name: rendezvous(name, key))

    home = first(names)
    for gone in names - {home}:
        assert first(names - {gone}) == home


async def test_a_connection_ends_even_if_its_life_hides_the_cancellation() -> None:
    class Hiding(FakeConnection):
        async def serve(self) -> str:
            try:
                return await super().serve()
            except asyncio.CancelledError:
                return "the call ended in the same instant"

    connection = Hiding("a:1")
    task = asyncio.create_task(connection.run())
    await until(lambda: connection.is_connected)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=5)
    task.cancel()  # for a connection that did reconnect: it sleeps in between
    assert ended
    assert connection.num_lives == 1
