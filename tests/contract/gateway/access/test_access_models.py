"""The models of a key: errors name no others, and while no model is known, none is its."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import websockets
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import CHAT, client_of, gateway_client, gateway_server
from support.keys import KeyStore
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

#: A model of every key here that nobody serves, and one that no key has.
GONE, HIDDEN = "gone/model", "hidden/model"


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("all")
    store.add("some", models=[GONE, MODEL.name])
    store.add("none", models=[GONE])
    return store


@pytest.mark.parametrize(
    ("name", "seen"), [("all", {MODEL.name, HIDDEN}), ("some", {MODEL.name}), ("none", set())], ids=["all", "some", "none"]
)
async def test_an_unknown_model_is_answered_with_the_models_of_the_key(keys: KeyStore, name: str, seen: set[str]) -> None:
    def check(told: Any) -> None:
        text = orjson.dumps(told).decode()
        assert "no model 'gone/model' here" in text
        assert {one for one in (MODEL.name, HIDDEN) if one in text} == seen

    headers = keys.headers(name)
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path, expected_models=(HIDDEN,)) as (host, port):
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", headers=headers) as client:
            for path, more in (
                ("/v1/chat/completions", {"messages": CHAT["messages"]}),
                ("/v1/chat/completions", {"messages": CHAT["messages"], "stream": True}),
                ("/v1/messages", {"messages": CHAT["messages"], "max_tokens": 5}),
                ("/v1/embeddings", {"input": "x"}),
                ("/tokenize", {"prompt": "x"}),
            ):
                answer = await client.post(path, json={"model": GONE, **more})
                assert answer.status_code == 404, answer.text
                check(answer.json())
            check((await client.get(f"/v1/models/{GONE}")).json())
            made = (await client.post("/v1/responses", json={"model": GONE, "input": "Hi", "background": True})).json()
            async with asyncio.timeout(10):
                while made["status"] in ("queued", "in_progress"):
                    made = (await client.get(f"/v1/responses/{made['id']}")).json()
            check(made)
        async with websockets.connect(f"ws://{host}:{port}/v1/responses", additional_headers=headers) as connection:
            await connection.send(orjson.dumps({"type": "response.create", "model": GONE, "input": "Hi"}).decode())
            check(orjson.loads(await connection.recv()))


async def test_of_several_models_a_key_is_told_its_own(keys: KeyStore) -> None:
    async with gateway_client(api_keys_file=keys.path, expected_models=(HIDDEN, "other/model")) as client:
        answers, asked = {}, {"prompt": "x"}
        for name in ("all", "some"):
            answers[name] = await client.post("/tokenize", json=asked, headers=keys.headers(name))
    assert {answer.status_code for answer in answers.values()} == {400}
    assert HIDDEN in answers["all"].text
    assert MODEL.name in answers["some"].text
    assert HIDDEN not in answers["some"].text


async def test_while_no_frontend_is_known_a_key_with_a_list_must_name_a_model(keys: KeyStore) -> None:
    app = create_app(GatewaySettings(frontend_addresses=("127.0.0.1:1",), api_keys_file=keys.path))
    async with app.router.lifespan_context(app), client_of(app) as client:
        unnamed, asked = {}, {"prompt": "x"}
        for name in ("all", "some"):
            unnamed[name] = await client.post("/tokenize", json=asked, headers=keys.headers(name))
        named = await client.post("/tokenize", json=asked | {"model": GONE}, headers=keys.headers("some"))
    assert (unnamed["all"].status_code, unnamed["some"].status_code, named.status_code) == (503, 403, 503)
    assert "name one of /v1/models" in unnamed["some"].json()["error"]["message"]
