"""A foreign site whose name begins to resolve to the gateway's address."""

from __future__ import annotations

import pytest
from support.fakes.gateway import CHAT, gateway_client

TAKEN = ["127.0.0.1:8000", "[::1]:8000", "10.0.0.7", "localhost", "localhost:8000", "app.localhost", "gateway", "gateway:80"]
TAKEN += ["triptych.models.svc", "triptych.models.svc.cluster.local:8000", "laptop.local", "host.docker.internal", "LOCALHOST."]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "2130706433.nip.io",
    "a.svc.example",
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/live", "/"])
@pytest.mark.parametrize("host", FOREIGN)
async def test_a_foreign_name_is_refused_without_keys(host: str, path: str) -> None:
    async with gateway_client() as client:
        refused = await client.request("GET" if path != "/v1/chat/completions" else "POST", path, json=CHAT, headers={"host": host})
    assert refused.status_code == 403
    assert "allowed_hosts" in refused.json()["error"]["message"]


@pytest.mark.parametrize("host", TAKEN)
async def test_names_that_no_site_can_have_are_taken(host: str) -> None:
    async with gateway_client() as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers={"host": host})).status_code == 200


@pytest.mark.parametrize("allowed", ["evil.example", "*.example", "*"])
async def test_allowed_names_are_taken(allowed: str) -> None:
    async with gateway_client(allowed_hosts=allowed) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers={"host": "evil.example"})).status_code == 200


async def test_with_keys_any_name_is_taken_unless_names_are_set() -> None:
    headers = {"host": "api.example.com", "authorization": "Bearer secret"}
    async with gateway_client(api_key="secret") as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 200
    async with gateway_client(api_key="secret", allowed_hosts="other.example.com") as client:
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status_code == 403
