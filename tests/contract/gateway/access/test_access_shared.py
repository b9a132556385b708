"""Several gateways share the rates of keys through a server, and answer without it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client
from support.keys import KeyStore
from support.shared_store import running_store, server_program
from support.waiting import until


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("key", requests_per_minute=6, tokens_per_minute=1000)
    return store


async def statuses(clients: list[httpx.AsyncClient], keys: KeyStore, times: int) -> list[int]:
    return [
        (await clients[number % len(clients)].post("/v1/chat/completions", json=CHAT, headers=keys.headers("key"))).status_code
        for number in range(times)
    ]


async def test_a_rate_is_for_all_gateways_together(keys: KeyStore, tmp_path: Path) -> None:
    with running_store(server_program(), tmp_path) as url:
        settings = {"api_keys_file": keys.path, "rate_limit_store": url}
        async with gateway_client(**settings) as one, gateway_client(**settings) as other:
            # One more is there after ten seconds.
            assert (await statuses([one, other], keys, 12)).count(200) in (6, 7)
            refused = await other.post("/v1/chat/completions", json=CHAT, headers=keys.headers("key"))
    assert int(refused.headers["x-ratelimit-remaining-requests"]) == 0
    # Both gateways have settled what their requests used: 7 tokens of the prompt and 3 of the answer.
    assert 930 <= int(refused.headers["x-ratelimit-remaining-tokens"]) <= 1000


async def test_without_the_server_each_gateway_counts_by_itself(keys: KeyStore, tmp_path: Path) -> None:
    with running_store(server_program(), tmp_path) as url:
        pass
    settings = {"api_keys_file": keys.path, "rate_limit_store": url}
    async with gateway_app(FakeFrontend(), **settings) as app, client_of(app) as client, gateway_client(**settings) as other:
        assert (await statuses([client], keys, 10)).count(200) in (6, 7)
        assert (await statuses([other], keys, 6)).count(200) == 6
        await until(lambda: not app.state.gateway.access._rates._settling)
        assert app.state.gateway.metrics.rate_store_failures._value.get() > 0
