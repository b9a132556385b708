"""A pool whose certificate is renewed: each connection is replaced, and none before its successor can take over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.certificates import write_role
from support.waiting import until
from triptych.errors import ServiceUnavailableError
from triptych.v1 import common_pb2
from triptych_common.cluster import connection as connection_module
from triptych_common.cluster.connection import Connection
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import StaticResolver, Update
from triptych_common.rpc.security import watched
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

MODEL = common_pb2.ModelInfo(name="m", fingerprint="f")


class FakeConnection(Connection):
    """Connects when its service lets it in."""

    def __init__(self, address: str, lets_in: asyncio.Event) -> None:
        super().__init__("engine", address)
        self._lets_in = lets_in
        self.has_ended = asyncio.Event()

    async def serve(self) -> str:
        if not self._lets_in.is_set():
            raise ServiceUnavailableError("refused")
        self.connected(common_pb2.Instance(id=self.address, state=common_pb2.SERVER_STATE_SERVING), MODEL)
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.has_ended.set()


class Moving(StaticResolver):
    """Reports what a test says."""

    async def watch(self, update: Update) -> None:
        self.update = update
        await super().watch(update)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MIN_BACKOFF_S", 0.001)
    monkeypatch.setattr(watched, "INTERVAL_S", 0.01)


class Bench:
    """A pool, the certificate that it follows, and whether services let new connections in."""

    def __init__(self, directory: Path, addresses: tuple[str, ...]) -> None:
        self._directory = directory
        self._number = 1
        self.tls = Tls(write_role(directory, Role.FRONTEND), Role.FRONTEND)
        self.lets_in = asyncio.Event()
        self.lets_in.set()
        self.made: list[FakeConnection] = []
        self.resolver = Moving(addresses)
        self.pool = Pool("engine", self.resolver, self._connect, tls=self.tls)

    def _connect(self, address: str) -> FakeConnection:
        self.made.append(FakeConnection(address, self.lets_in))
        return self.made[-1]

    async def renew(self) -> None:
        """Replace the files, and wait until the pool has seen it."""
        self._number += 1
        changed, num_made = asyncio.create_task(self.tls.changed()), len(self.made)
        await asyncio.sleep(0)
        write_role(self._directory, Role.FRONTEND, number=self._number)
        await asyncio.wait_for(changed, 10)
        await until(lambda: len(self.made) == num_made + len(self.pool.connections))


@asynccontextmanager
async def bench_of(directory: Path, *addresses: str) -> AsyncIterator[Bench]:
    bench = Bench(directory, addresses)
    tasks = [asyncio.create_task(bench.pool.run()), asyncio.create_task(bench.tls.watch())]
    try:
        await until(lambda: len(bench.pool.ready) == len(addresses))
        yield bench
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not any(connection.is_connected for connection in bench.made)


async def test_each_connection_is_replaced_and_idle_ones_end(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1", "b:1") as bench:
        first = bench.pool.connections
        await bench.renew()
        await until(lambda: all(connection.has_ended.is_set() for connection in first))
        assert [connection.address for connection in bench.pool.connections] == ["a:1", "b:1"]
        assert bench.pool.ready == tuple(bench.made[2:])


async def test_at_no_time_is_a_service_away(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1") as bench:
        gaps = []
        note = bench.pool._note_change

        def watched_change() -> None:
            note()
            gaps.append(len(bench.pool.ready))

        bench.pool._note_change = watched_change  # type: ignore[method-assign]
        await bench.renew()
        await until(lambda: bench.pool.ready == (bench.made[1],))
        assert {*gaps} == {1}


async def test_one_in_use_stays_open_until_its_work_has_ended(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1") as bench:
        (old,) = bench.pool.ready
        with old.in_use():
            await bench.renew()
            await until(lambda: bench.pool.ready == (bench.made[1],))
            await asyncio.sleep(0.3)
            assert old.is_connected
        await asyncio.wait_for(old.has_ended.wait(), 10)


async def test_the_earlier_one_goes_on_where_the_new_certificate_is_refused(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1") as bench:
        (old,) = bench.pool.ready
        bench.lets_in.clear()
        await bench.renew()
        await asyncio.sleep(0.1)
        assert bench.pool.ready == (old,)
        bench.lets_in.set()
        await until(lambda: bench.pool.ready == (bench.made[1],))


async def test_a_second_renewal_gives_up_what_the_first_began(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1") as bench:
        (old,) = bench.pool.ready
        bench.lets_in.clear()
        await bench.renew()
        await bench.renew()
        assert len(bench.made) == 3
        bench.lets_in.set()
        await until(lambda: bench.pool.ready == (bench.made[2],))
        await asyncio.wait_for(old.has_ended.wait(), 10)
        assert not bench.made[1].is_connected


async def test_an_address_that_disappears_takes_its_successor_along(tmp_path: Path) -> None:
    async with bench_of(tmp_path, "a:1", "b:1") as bench:
        bench.lets_in.clear()
        await bench.renew()
        bench.resolver.update(("b:1",))
        bench.lets_in.set()
        await until(lambda: bench.pool.ready == (bench.made[3],))
        await until(lambda: [connection for connection in bench.made if connection.is_connected] == [bench.made[3]])
