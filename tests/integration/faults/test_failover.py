"""A Valkey server that becomes a read-only replica, as in a fail-over, behind an address that moves on to another one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis
from support.shared_store import running_store, server_program
from triptych.errors import ServiceUnavailableError
from triptych_encoder.cache.item import EncodedItem, HostTensor
from triptych_encoder.cache.store import SharedStore
from triptych_gateway.access.rates import Draw, SharedRates
from triptych_gateway.stores.store import StoredResponse
from triptych_gateway.stores.valkey import ValkeyStore


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[str, str]]:
    program = server_program()
    with running_store(program, tmp_path) as first, running_store(program, tmp_path) as second:
        yield first, second


class Address:
    """One address in front of servers. New connections go to the current one; those that exist stay where they are."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.url = ""
        self.connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.add(task)
        place = urlsplit(self.target)
        there, back = await asyncio.open_connection(place.hostname, place.port)
        copies = [asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))]
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        for end in (back, writer):
            end.close()
            with contextlib.suppress(ConnectionError):
                await end.wait_closed()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)
            await writer.drain()


@contextlib.asynccontextmanager
async def address_of(target: str) -> AsyncIterator[Address]:
    address = Address(target)
    async with await asyncio.start_server(address.serve, "127.0.0.1", 0) as server:
        address.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
        yield address
        await asyncio.gather(*address.connections)


def fail_over(address: Address, servers: tuple[str, str]) -> None:
    """The first server becomes a replica, which takes no writes and keeps its connections. The address moves on."""
    first, second = servers
    with Redis.from_url(first) as client:
        client.replicaof("127.0.0.1", str(urlsplit(second).port))
    address.target = second


async def test_stored_responses(servers: tuple[str, str]) -> None:
    async with address_of(servers[0]) as address:
        store = ValkeyStore(address.url, 60.0)
        record = StoredResponse("resp_1", "", None, b"{}", b"[]")
        await store.put(record)
        fail_over(address, servers)
        with contextlib.suppress(ServiceUnavailableError):  # this write meets the replica
            await store.put(record)
        await store.put(record)
        assert await store.get("", "resp_1") == record
        assert await store.delete("", "resp_1")
        await store.close()


async def test_embeddings(servers: tuple[str, str]) -> None:
    import torch

    item = EncodedItem({"embeds": HostTensor.from_torch(torch.ones(3, 4))}, 3)
    async with address_of(servers[0]) as address:
        store = SharedStore(address.url, 60.0, 1 << 20)
        await store.put(b"k" * 32, item)
        fail_over(address, servers)
        await store.put(b"k" * 32, item)
        assert store.num_failures == 1, "counted, not raised"
        await store.put(b"k" * 32, item)
        assert await store.has([b"k" * 32]) == [True]
        assert store.num_failures == 1
        await store.close()


async def test_rates(servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.access.rates._PAUSE_S", 0.0)
    failures: list[None] = []
    async with address_of(servers[0]) as address:
        rates = SharedRates(address.url, lambda: failures.append(None))
        draw = Draw("requests", 60, 1.0)
        await rates.take("key", [draw])
        fail_over(address, servers)
        assert (await rates.take("key", [draw])).is_allowed, "this gateway counts alone meanwhile"
        assert len(failures) == 1
        await rates.take("key", [draw])
        assert len(failures) == 1
        with Redis.from_url(servers[1]) as client:
            assert client.keys("triptych:rate:*")
        await rates.close()
