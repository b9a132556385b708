"""All stores of responses behave alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shared_store import running_store, server_program
from triptych.errors import InvalidRequestError, ServiceUnavailableError, StartupError
from triptych_gateway.stores.memory import MemoryStore
from triptych_gateway.stores.opening import check_target, open_store
from triptych_gateway.stores.sqlite import SqliteStore, equal_part
from triptych_gateway.stores.store import ConnectionResponses, ResponseStore, StoredResponse, chain

KINDS = ("memory", "sqlite", "valkey")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_store(server_program(), tmp_path_factory.mktemp("store")) as url:
        yield url


@pytest.fixture(params=KINDS)
async def store(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> AsyncIterator[ResponseStore]:
    target = {"memory": "memory", "sqlite": f"sqlite:{tmp_path}/new/responses.db", "valkey": server}[request.param]
    opened = open_store(target, 60.0, 1 << 20)
    yield opened
    await opened.close()


def record(name: str, **fields: object) -> StoredResponse:
    base = StoredResponse(f"resp_{name}", "tenant", None, b'{"output":[]}', b"[1]")
    return replace(base, **fields)  # type: ignore[arg-type]


async def test_what_is_put_is_there(store: ResponseStore) -> None:
    whole = record("whole", previous_id="resp_before", events=b"data: \xc3\xa9\n\n", live_until_s=12345.678)
    await store.put(whole)
    assert await store.get("tenant", whole.id) == whole
    assert await store.get("tenant", "resp_unknown") is None


async def test_another_tenant_does_not_see_it(store: ResponseStore) -> None:
    own = record("own", live_until_s=5.0)
    await store.put(own)
    assert await store.get("other", own.id) is None
    assert not await store.delete("other", own.id)
    assert not await store.replace(replace(own, tenant="other"))
    assert await store.get("tenant", own.id) == own


async def test_deleted_once(store: ResponseStore) -> None:
    await store.put(record("deleted"))
    assert await store.delete("tenant", "resp_deleted")
    assert not await store.delete("tenant", "resp_deleted")
    assert await store.get("tenant", "resp_deleted") is None


async def test_only_a_live_response_is_replaced(store: ResponseStore) -> None:
    live = record("live", live_until_s=7.0)
    assert not await store.replace(live), "it is not there"
    await store.put(live)
    assert await store.replace(replace(live, live_until_s=8.0))
    ended = replace(live, response=b'{"status":"cancelled"}', live_until_s=0.0)
    assert await store.replace(ended)
    assert not await store.replace(replace(live, response=b'{"status":"completed"}', live_until_s=0.0)), "it has ended"
    assert await store.get("tenant", live.id) == ended


async def test_a_chain_is_oldest_first(store: ResponseStore) -> None:
    for name, before in (("c1", None), ("c2", "resp_c1"), ("c3", "resp_c2")):
        await store.put(record(name, previous_id=before))
    found = await chain(store, "tenant", "resp_c3", 1 << 20)
    assert found is not None
    assert [one.id for one in found] == ["resp_c1", "resp_c2", "resp_c3"]
    assert await chain(store, "other", "resp_c3", 1 << 20) is None
    await store.delete("tenant", "resp_c1")
    assert await chain(store, "tenant", "resp_c3", 1 << 20) is None, "a part is gone"


async def test_a_walk_ends_where_something_is_missing_or_too_large(store: ResponseStore) -> None:
    chained = [record(f"w{number}", previous_id=f"resp_w{number - 1}", events=b"e") for number in range(1, 6)]
    for one in chained:
        await store.put(one)
    newest_first = chained[::-1]
    assert await store.walk("tenant", "resp_w5", 1 << 20) == newest_first, "the first one's predecessor is not there"
    assert await store.walk("other", "resp_w5", 1 << 20) == []
    each = chained[0].num_item_bytes
    assert await store.walk("tenant", "resp_w5", 2 * each) == newest_first[:3], "with the one that is too much"
    with pytest.raises(InvalidRequestError, match=f"more than {2 * each} bytes"):
        await chain(store, "tenant", "resp_w5", 2 * each)
    await store.put(record("w3", previous_id="resp_w2", tenant="other"))
    assert await store.walk("tenant", "resp_w5", 1 << 20) == newest_first[:2]


async def test_a_walk_ends_after_so_many(store: ResponseStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("store", "valkey"):
        monkeypatch.setattr(f"triptych_gateway.stores.{module}.MAX_CHAIN", 3)
    await store.put(record("loop", previous_id="resp_loop"))
    assert len(await store.walk("tenant", "resp_loop", 1 << 20)) == 3


async def test_a_connection_walks_over_its_own_responses_and_those_of_the_store(store: ResponseStore) -> None:
    connection = ConnectionResponses(store, 1 << 20)
    stored, own, last = record("s1"), record("o1", previous_id="resp_s1"), record("s2", previous_id="resp_o1")
    await store.put(stored)
    connection.remember(own)
    await store.put(last)
    assert await connection.walk("tenant", "resp_s2", 1 << 20) == [last, own, stored]
    assert await connection.walk("tenant", "resp_o1", 0) == [own]
    assert await connection.walk("other", "resp_o1", 1 << 20) == []
    connection.forget("resp_o1")
    assert await connection.walk("tenant", "resp_s2", 1 << 20) == [last]


async def test_responses_expire_on_a_server(server: str) -> None:
    store = open_store(server, 0.001, 0)
    await store.put(record("short", live_until_s=9.0))
    for _ in range(1000):
        if await store.get("tenant", "resp_short") is None:
            break
    assert await store.get("tenant", "resp_short") is None
    assert not await store.replace(record("short")), "a response that has expired does not come back"
    await store.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_responses_expire(kind: str, tmp_path: Path) -> None:
    clock = Clock()
    path = str(tmp_path / "responses.db")
    store: ResponseStore = MemoryStore(60, 1 << 20, clock) if kind == "memory" else SqliteStore(path, 60, 1 << 20, clock)
    await store.put(record("old"))
    clock.now += 59
    assert await store.get("tenant", "resp_old") is not None
    clock.now += 2
    assert await store.get("tenant", "resp_old") is None
    assert not await store.delete("tenant", "resp_old")
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_oldest_are_dropped_when_it_is_full(kind: str, tmp_path: Path) -> None:
    store = open_store("memory" if kind == "memory" else f"sqlite:{tmp_path}/responses.db", 60, 10_000)
    for number in range(10):
        await store.put(record(f"n{number}", response=b"x" * 2000))
    kept = [number for number in range(10) if await store.get("tenant", f"resp_n{number}")]
    assert kept == [6, 7, 8, 9]
    await store.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_tenant_that_keeps_most_loses_its_oldest(kind: str, tmp_path: Path) -> None:
    store = open_store("memory" if kind == "memory" else f"sqlite:{tmp_path}/responses.db", 60, 10_000)
    for tenant in ("quiet", "other"):
        await store.put(record(tenant, tenant=tenant, response=b"x" * 2000))
    for number in range(100):
        await store.put(record(f"n{number}", tenant="flood", response=b"x" * 1000))
    assert await store.get("quiet", "resp_quiet")
    assert await store.get("other", "resp_other")
    kept = [number for number in range(100) if await store.get("flood", f"resp_n{number}")]
    assert kept == list(range(kept[0], 100))
    assert 4 <= len(kept) <= 6
    await store.close()


@given(st.lists(st.integers(0, 100), max_size=8), st.integers(1, 200))
def test_equal_parts_fill_the_limit(sizes: list[int], limit: int) -> None:
    part = equal_part(sizes, limit)
    kept = sum(min(size, part) for size in sizes)
    assert kept <= limit
    assert sum(sizes) <= limit or kept > limit - max(1, len(sizes))


async def test_sqlite_survives_a_restart(tmp_path: Path) -> None:
    target = f"sqlite:{tmp_path}/responses.db"
    first = open_store(target, 60, 1 << 20)
    await first.put(record("kept"))
    await first.close()
    await first.close()  # closing twice is allowed
    second = open_store(target, 60, 1 << 20)
    assert await second.get("tenant", "resp_kept") == record("kept")
    await second.close()


async def test_two_processes_may_share_a_file(tmp_path: Path) -> None:
    first, second = (open_store(f"sqlite:{tmp_path}/responses.db", 60, 1 << 20) for _ in range(2))
    await first.put(record("shared", live_until_s=3.0))
    assert await second.replace(record("shared"))
    assert await first.get("tenant", "resp_shared") == record("shared")
    await first.close()
    await second.close()


async def test_more_calls_at_once_than_connections_wait(store: ResponseStore) -> None:
    await store.put(record("busy"))
    found = await asyncio.gather(*(store.get("tenant", "resp_busy") for _ in range(300)))
    assert found == [record("busy")] * 300


async def test_a_server_that_is_away_is_said_to_be() -> None:
    store = open_store("redis://127.0.0.1:1/0", 60, 0)
    with pytest.raises(ServiceUnavailableError, match="store of responses is away"):
        await store.put(record("x"))
    with pytest.raises(ServiceUnavailableError, match="store of responses is away"):
        await store.get("tenant", "resp_x")
    await store.close()


def test_a_file_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--response-store"):
        open_store(f"sqlite:{tmp_path}", 60, 0)


@pytest.mark.parametrize("target", ["", "sqlite:", "file.db", "http://host"])
def test_unknown_forms_are_refused(target: str) -> None:
    with pytest.raises(ValueError, match="must be memory, sqlite:PATH"):
        check_target(target)
