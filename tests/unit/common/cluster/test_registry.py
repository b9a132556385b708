"""A registry on a real server: services come and go with their leases, and an outage of the server drops nobody."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.shared_store import running_store, server_program
from support.waiting import until
from triptych_common.cluster.registry import RegistryResolver, ignored_entries
from triptych_common.cluster.resolution import resolver_of
from triptych_common.rpc import registration
from triptych_common.rpc.registration import HEARTBEAT_S, LEASE_S, PREFIX, Registration


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(server_program(), tmp_path_factory.mktemp("registry")) as url:
        yield url


@pytest.fixture(autouse=True)
def _empty(url: str) -> None:
    Redis.from_url(url).flushall()


def entry(address: str, **fields: object) -> dict[str, object]:
    return {"address": address, "model": "m", "fingerprint": "f", **fields}


@asynccontextmanager
async def registered(url: str, address: str, name: str = "one") -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(Registration(url, "engine", name, lambda: entry(address)).run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def seen(url: str, fingerprint: str = "") -> AsyncIterator[list[tuple[str, ...]]]:
    """The sets that a reader was told of."""
    told: list[tuple[str, ...]] = []
    task = asyncio.create_task(RegistryResolver(url, "engine", fingerprint).watch(told.append))
    try:
        await until(lambda: bool(told))
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def elapsed(condition: asyncio.Future[object] | object) -> float:
    start_s = asyncio.get_running_loop().time()
    await condition  # type: ignore[misc]
    return asyncio.get_running_loop().time() - start_s


async def test_a_service_is_found_soon_and_gone_at_once_when_it_says_so(url: str) -> None:
    async with seen(url) as told, registered(url, "a:1"):
        assert await elapsed(until(lambda: told[-1] == ("a:1",))) < 1.0
        async with registered(url, "b:1", "two"):
            await until(lambda: told[-1] == ("a:1", "b:1"))
        assert await elapsed(until(lambda: told[-1] == ("a:1",))) < 1.0


async def test_one_that_is_killed_is_gone_after_its_lease(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with registered(url, "a:1"), seen(url) as told:
        dead = Registration(url, "engine", "two", lambda: entry("b:1"))
        await dead._tell(entry("b:1"))
        await until(lambda: told[-1] == ("a:1", "b:1"))
        await asyncio.sleep(LEASE_S - 1.0)  # the reader's own beginning is over
        assert await elapsed(until(lambda: told[-1] == ("a:1",), 10)) < LEASE_S + 1.0
        await dead._client.aclose()


async def test_an_entry_is_renewed_as_long_as_the_service_is_ready(url: str) -> None:
    is_ready = True
    task = asyncio.create_task(Registration(url, "engine", "one", lambda: entry("a:1") if is_ready else None).run())
    client = Redis.from_url(url)
    for _ in range(3):
        await asyncio.sleep(HEARTBEAT_S + 0.3)
        assert client.pttl(f"{PREFIX}engine:one") > (LEASE_S - HEARTBEAT_S - 0.5) * 1000  # type: ignore[operator]
    is_ready = False
    await until(lambda: not client.keys("*"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_cancellation_at_any_moment_ends_both(url: str) -> None:
    for turns in range(48):
        tasks = [
            asyncio.create_task(Registration(url, "engine", "one", lambda: entry("a:1")).run()),
            asyncio.create_task(RegistryResolver(url, "engine").watch(lambda _addresses: None)),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        _, pending = await asyncio.wait(tasks, timeout=3.0)
        assert not pending, f"cancelled after {turns} turns of the loop"


async def test_an_outage_drops_nobody_even_if_the_server_comes_back_empty(tmp_path: Path) -> None:
    with running_store(server_program(), tmp_path) as url:
        port = url.rpartition(":")[2].partition("/")[0]
        async with registered(url, "a:1"), registered(url, "b:1", "two"), seen(url) as told:
            await until(lambda: told[-1] == ("a:1", "b:1"))
            Redis.from_url(url).shutdown(nosave=True)
            await asyncio.sleep(LEASE_S + 1)
            assert told[-1] == ("a:1", "b:1")
            again = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
                [server_program(), "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
                stdout=subprocess.DEVNULL,
            )
            try:
                client = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
                await until(lambda: _answers(client) and len(client.keys("*")) == 2, 15)  # type: ignore[arg-type]
                await asyncio.sleep(LEASE_S + 1)
                assert set(told) <= {(), ("a:1",), ("b:1",), ("a:1", "b:1")}
                assert told[-1] == ("a:1", "b:1")
                assert told.index(("a:1", "b:1")) == len(told) - 1, "nobody was dropped since"
                async with registered(url, "c:1", "three"):
                    await until(lambda: told[-1] == ("a:1", "b:1", "c:1"))
            finally:
                again.terminate()
                again.wait()


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except Exception:
        return False


async def test_the_last_ones_stay_when_all_leases_lapse(url: str) -> None:
    """As when the server took no writes for a while: an empty set would refuse every request.

    ai-dynamo/dynamo #3493: an interruption of etcd for seconds cost the leases, and every service restarted.
    """
    async with seen(url) as told:
        lone = Registration(url, "engine", "one", lambda: entry("a:1"))
        await lone._tell(entry("a:1"))
        await until(lambda: told[-1] == ("a:1",))
        await asyncio.sleep(2 * LEASE_S)
        assert told[-1] == ("a:1",)
        await lone._client.aclose()


async def test_a_server_that_takes_no_writes_is_reported_and_used_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Redis.from_url(url)
    async with seen(url) as told:
        client.replicaof("127.0.0.1", 1)
        try:
            async with registered(url, "a:1"):
                await until(lambda: "the registry cannot be told" in caplog.text)
                assert "read only replica" in caplog.text.lower()
                client.replicaof("NO", "ONE")
                await until(lambda: told[-1] == ("a:1",))
        finally:
            client.replicaof("NO", "ONE")


async def test_what_is_no_entry_or_of_another_model_is_ignored(url: str, caplog: pytest.LogCaptureFixture) -> None:
    client = Redis.from_url(url)
    before = ignored_entries["engine"]
    for name, value in {
        "text": "no json",
        "list": "[]",
        "nothing": "{}",
        "address": json.dumps(entry("no address")),
        "other": json.dumps(entry("x:1", fingerprint="g")),
    }.items():
        client.set(f"{PREFIX}engine:{name}", value)
    async with registered(url, "a:1"), registered(url, "a:1", "twice"), seen(url, "f") as told:
        await until(lambda: told[-1] == ("a:1",))
        await asyncio.sleep(1.2)
        assert told[-1] == ("a:1",)
    assert ignored_entries["engine"] - before == 4
    assert caplog.text.count("is ignored") == 4, "each is logged once"


async def test_one_that_was_refused_an_id_leaves_the_entry_of_its_holder(url: str) -> None:
    async with registered(url, "a:1"):
        client = Redis.from_url(url)
        await until(lambda: bool(client.keys("*")))
        async with registered(url, "b:1"):
            await asyncio.sleep(0.5)
        assert json.loads(client.get(f"{PREFIX}engine:one"))["address"] == "a:1"  # type: ignore[arg-type]


async def test_an_id_that_another_service_has_is_not_taken_from_it(url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with seen(url) as told, registered(url, "a:1"):
        await until(lambda: told[-1] == ("a:1",))
        async with registered(url, "b:1"):
            await until(lambda: "another service has the entry" in caplog.text)
            await asyncio.sleep(HEARTBEAT_S)
            assert told[-1] == ("a:1",)


def test_the_url_of_a_registry_is_a_target() -> None:
    assert isinstance(resolver_of(["valkey://host:6379/0"], "engine"), RegistryResolver)
    assert registration.registry_client("valkeys://u:p@host:6379/0").connection_pool.connection_kwargs["host"] == "host"
