"""Two tenants: whose data a request may see follows from its key, and from nothing that a client sends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import websockets
from support.fakes.frontend import MODEL, FakeFrontend, says
from support.fakes.gateway import CHAT, COMPLETION, client_of, gateway_app, gateway_client, gateway_server
from support.keys import KeyStore
from support.waiting import until
from triptych_common.rpc.principal import Principal
from triptych_gateway.settings import GatewaySettings


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    for name in ("one", "other"):
        store.add(name)
    store.add("new key of one", tenant=store.id("one"))
    return store


RESPONSE = {"model": MODEL.name, "input": "Hi"}
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", COMPLETION),
    ("/v1/messages", {**CHAT, "max_tokens": 5}),
    ("/api/chat", CHAT),
    ("/api/generate", COMPLETION),
    ("/v1/responses", RESPONSE),
    ("/v1/responses", {**RESPONSE, "background": True}),
    ("/v1/responses/compact", RESPONSE),
]
PREPROCESSED = [
    ("/v1/chat/completions/render", CHAT),
    ("/tokenize", {"messages": CHAT["messages"]}),
    ("/v1/messages/count_tokens", CHAT),
    ("/v1/responses/input_tokens", RESPONSE),
]
POOLED = [
    ("/v1/embeddings", {"model": MODEL.name, "input": "x"}),
    ("/api/embed", {"model": MODEL.name, "input": "x"}),
    ("/classify", {"input": "x"}),
    ("/score", {"text_1": "a", "text_2": "b"}),
]


async def test_every_call_carries_the_tenant_of_its_key(keys: KeyStore) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend, api_key="the only key", api_keys_file=keys.path) as client:
        for name in ("one", "other", "new key of one"):
            for path, body in (*REQUESTS, *PREPROCESSED, *POOLED):
                answer = await client.post(path, json=body, headers=keys.headers(name))
                assert answer.status_code == 200, answer.text
        # Nothing that a client sends changes it.
        spoofed = {"x-api-key": "the only key", "x-tenant": keys.id("one"), "tenant": keys.id("one"), "x-triptych-tenant": "x"}
        assert (await client.post("/v1/completions", json=COMPLETION, headers=spoofed)).status_code == 200
        await until(lambda: len(frontend.contexts) == 3 * len(REQUESTS) + 1)
    names = ("one", "other", "one")
    tenants = [context.tenant for context in frontend.contexts]
    assert sorted(tenants) == sorted([keys.id(name) for name in names for _ in REQUESTS] + [""])
    assert tenants[-1] == ""
    assert [one.context.tenant for one in frontend.preprocessed] == [keys.id(name) for name in names for _ in PREPROCESSED]
    assert [one.context.tenant for one in frontend.pooling_requests] == [keys.id(name) for name in names for _ in POOLED]
    assert len({Principal(keys.id("one")).scoped_salt(""), Principal(keys.id("other")).scoped_salt(""), ""}) == 3


async def test_a_tenant_cannot_reach_the_responses_of_another(keys: KeyStore) -> None:
    async with gateway_client(api_keys_file=keys.path) as client:
        made = (await client.post("/v1/responses", json=RESPONSE, headers=keys.headers("one"))).json()
        path, unknown = f"/v1/responses/{made['id']}", "/v1/responses/resp_" + "0" * 32

        async def ask(path: str, name: str) -> list[httpx.Response]:
            headers = keys.headers(name)
            previous = {**RESPONSE, "previous_response_id": path.rpartition("/")[2]}
            return [
                await client.get(path, headers=headers),
                await client.get(f"{path}/input_items", headers=headers),
                await client.post(f"{path}/cancel", headers=headers),
                await client.delete(path, headers=headers),
                await client.post("/v1/responses", json=previous, headers=headers),
                await client.post("/v1/responses/input_tokens", json=previous, headers=headers),
                await client.post("/v1/responses/compact", json=previous, headers=headers),
                await client.post(
                    "/v1/responses",
                    json={**RESPONSE, "input": [{"type": "item_reference", "id": made["output"][0]["id"]}]},
                    headers=headers,
                ),
            ]

        foreign, missing = await ask(path, "other"), await ask(unknown, "other")
        for there, not_there in zip(foreign, missing, strict=True):
            assert there.status_code == not_there.status_code == 404
            assert there.text.replace(made["id"], unknown.rpartition("/")[2]) == not_there.text
        # A further key of the same tenant is the same owner.
        assert (await client.get(path, headers=keys.headers("new key of one"))).json() == made
        assert (await client.get(path, headers=keys.headers("one"))).json() == made


async def test_a_tenant_cannot_follow_or_cancel_a_background_response_of_another(keys: KeyStore) -> None:
    frontend, gate = FakeFrontend(), asyncio.Semaphore(0)
    frontend.script = says("Hel", "lo", gate=gate)
    async with gateway_app(frontend, api_keys_file=keys.path) as app, client_of(app) as client:
        body = {**RESPONSE, "background": True}
        made = (await client.post("/v1/responses", json=body, headers=keys.headers("one"))).json()
        path = f"/v1/responses/{made['id']}"
        for method, url in (("GET", f"{path}?stream=true"), ("POST", f"{path}/cancel"), ("DELETE", path)):
            assert (await client.request(method, url, headers=keys.headers("other"))).status_code == 404
        assert made["id"] in app.state.responses.background.runs
        for _ in range(3):
            gate.release()
        await until(lambda: not app.state.responses.background.runs)
        assert (await client.get(path, headers=keys.headers("one"))).json()["status"] == "completed"


async def test_a_websocket_is_of_the_tenant_of_its_key(keys: KeyStore) -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend, api_keys_file=keys.path) as (host, port):
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            made = (await client.post("/v1/responses", json=RESPONSE, headers=keys.headers("one"))).json()
        message = orjson.dumps({"type": "response.create", **RESPONSE, "previous_response_id": made["id"]}).decode()
        first: dict[str, dict[str, Any]] = {}
        for name in ("one", "other"):
            address = f"ws://{host}:{port}/v1/responses"
            async with websockets.connect(address, additional_headers=keys.headers(name)) as connection:
                await connection.send(message)
                first[name] = orjson.loads(await connection.recv())
    assert first["one"]["type"] == "response.created"
    assert (first["other"]["status"], first["other"]["error"]["code"]) == (404, "previous_response_not_found")
    assert {context.tenant for context in frontend.contexts} == {keys.id("one")}


async def test_a_page_of_this_server_may_open_a_websocket_and_others_may_not(keys: KeyStore) -> None:
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path) as (host, port):
        address, headers = f"ws://{host}:{port}/v1/responses", keys.headers("one")
        async with websockets.connect(address, additional_headers={**headers, "origin": f"http://{host}:{port}"}):
            pass
        with pytest.raises(websockets.InvalidStatus) as caught:
            await websockets.connect(address, additional_headers={**headers, "origin": "http://elsewhere"})
    assert caught.value.response.status_code == 403


@pytest.mark.parametrize(
    ("settings", "origin", "is_allowed"),
    [
        ({}, "http://page", False),
        ({}, "http://localhost:3000", True),
        ({}, "https://127.0.0.1", True),
        ({}, "http://[::1]:8080", True),
        ({}, "http://localhost.evil.example", False),
        ({}, "http://evil.example/localhost", False),
        ({}, "http://127.0.0.1.evil.example", False),
        ({"api_key": "k"}, "http://localhost:3000", False),
        ({"api_key": "k", "cors_allow_origins": ("*",)}, "http://page", True),
        ({"cors_allow_origins": ("*",)}, "http://page", True),
        ({"cors_allow_origins": ()}, "http://localhost:3000", False),
    ],
)
async def test_pages_of_other_origins_are_kept_out(settings: dict[str, Any], origin: str, is_allowed: bool) -> None:
    assert GatewaySettings(**settings).allows_origin(origin) is is_allowed
    async with gateway_client(**settings) as client:
        answer = await client.get("/live", headers={"origin": origin})
        assert ("access-control-allow-origin" in answer.headers) == is_allowed
        if is_allowed:
            assert "x-ratelimit-remaining-tokens" in answer.headers["access-control-expose-headers"]


async def test_a_turn_on_a_websocket_is_of_the_tenant_that_its_key_has_now(keys: KeyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych_gateway.access.key_ring.RELOAD_INTERVAL_S", 0.01)
    frontend = FakeFrontend()
    async with gateway_server(frontend, api_keys_file=keys.path) as (host, port):
        address = f"ws://{host}:{port}/v1/responses"
        async with websockets.connect(address, additional_headers=keys.headers("one")) as connection:

            async def turn(**fields: Any) -> dict[str, Any]:
                await connection.send(orjson.dumps({"type": "response.create", "store": False, **RESPONSE, **fields}).decode())
                while (event := orjson.loads(await connection.recv()))["type"] not in ("response.completed", "error"):
                    pass
                return dict(event)

            before = (await turn())["response"]["id"]
            keys.change("one", tenant="moved")
            async with asyncio.timeout(10):
                while frontend.contexts[-1].tenant != "moved":
                    await turn()
            continued = await turn(previous_response_id=before)
    assert frontend.contexts[0].tenant == keys.id("one")
    assert (continued["type"], continued["status"]) == ("error", 404), "a response of the tenant from before"
