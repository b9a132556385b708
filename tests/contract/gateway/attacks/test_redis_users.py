"""The users of a Redis that docs/kubernetes.md makes: each service can do its work, and reads nothing of the others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from redis import Redis
from redis.exceptions import NoPermissionError
from support.shared_store import running_store, server_program
from triptych_encoder.cache.item import EncodedItem, HostTensor
from triptych_encoder.cache.store import SharedStore
from triptych_gateway.access.rates import Draw, SharedRates
from triptych_gateway.stores.store import StoredResponse
from triptych_gateway.stores.valkey import ValkeyStore

PAGE = Path(__file__).resolve().parents[4] / "docs" / "kubernetes.md"
USERS = ("embeddings", "responses", "rates")


@pytest.fixture
def urls(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The address of each user, of a server to which the page's commands were given."""
    commands = re.findall(r"^ACL SETUSER (.*)$", PAGE.read_text(), re.MULTILINE)
    with running_store(server_program(), tmp_path) as url:
        with Redis.from_url(url) as admin:
            for command in commands:
                admin.execute_command("ACL", "SETUSER", *command.split())
        yield {user: url.replace("//", f"//{user}:SECRET@") for user in USERS}


async def test_each_service_does_its_work_and_reads_nothing_else(urls: dict[str, str]) -> None:
    embeddings, responses = SharedStore(urls["embeddings"], 60, 1 << 20), ValkeyStore(urls["responses"], 60)
    failures: list[str] = []
    rates = SharedRates(urls["rates"], lambda: failures.append("rates"))
    item = EncodedItem({"embeds": HostTensor.from_torch(torch.ones(2, 3))}, 2)
    await embeddings.put(b"key", item)
    assert await embeddings.get(b"key") == item
    assert await embeddings.has([b"key", b"other"]) == [True, False]
    record = StoredResponse("resp_a", "tenant", None, b"{}", b"[]")
    await responses.put(record)
    assert await responses.get("tenant", "resp_a") == record
    assert (await rates.take("ada", [Draw("requests", 60, 1)])).is_allowed
    assert not failures

    keys = {"embeddings": "triptych:embedding:key", "responses": "triptych:response:resp_a", "rates": "triptych:rate:ada"}
    for user, url in urls.items():
        with Redis.from_url(url) as client:
            for owner, key in keys.items():
                if owner == user:
                    assert client.exists(key)
                    continue
                for refused in (client.exists, client.delete, client.get, client.hgetall):
                    with pytest.raises(NoPermissionError):
                        refused(key)
            for listing in (client.keys, client.scan, client.flushdb, client.config_get):
                with pytest.raises(NoPermissionError):
                    listing()

    await embeddings.evict([b"key"])
    assert await responses.delete("tenant", "resp_a")
    assert embeddings.num_failures == 0
    await embeddings.close()
    await responses.close()
    await rates.close()
