"""What bodies that are no requests get, unknown models and unknown routes."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import orjson
import pytest
from support.fakes.gateway import CHAT, COMPLETION, gateway_client
from support.waiting import until
from triptych_gateway.apis import json_body
from triptych_gateway.body_budget import BodyBudget
from triptych_gateway.file_parts import MAX_MARKS


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nope",
        b'{"model": NaN}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b'{"model": "\xed\xa0\x80"}',
        b"[" * 2000,
        b'{"temperature": 1e999}',
        b"[]",
        b"5",
        b'"x"',
        b"null",
    ],
    ids=repr,
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
async def test_bodies_that_are_no_json_object(path: str, body: bytes) -> None:
    async with gateway_client() as client:
        response = await client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.json()["error"]["param"] is None


async def test_other_content_types_are_told_what_to_send() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/completions", data={"model": "x"})
    assert response.status_code == 400
    assert "content-type: application/json" in response.json()["error"]["message"]


async def test_template_variables_that_are_nested_too_deeply() -> None:
    nested = b'{"a":' * 400 + b"1" + b"}" * 400
    body = b'{"model": "fake/model", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": %b}' % nested
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "chat_template_kwargs"


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "chunked"])
async def test_too_large_body(announced: bool) -> None:
    async def chunks() -> Any:
        for _ in range(20):
            yield b" " * 100

    async with gateway_client(max_body_bytes=1024) as client:
        response = await client.post("/v1/completions", content=b" " * 2000 if announced else chunks())
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "1024" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"prompt": [' + b"1," * json_body.MAX_SEPARATORS + b"1]}", "commas and opening brackets"),
        (b'{"prompt": [' + b"[]," * json_body.MAX_BRACKETS + b"[]]}", "opening brackets"),
        (b'{"prompt": [' + b'"",' * json_body.MAX_STRINGS + b'""]}', "strings"),
        (b'{"prompt": [' + b'"data",' * MAX_MARKS + b'"data"]}', '"data" more than'),
    ],
    ids=["separators", "brackets", "strings", "marks"],
)
async def test_a_body_of_nothing_but_structure(body: bytes, problem: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert problem in response.json()["error"]["message"]


async def test_quotes_within_a_text_are_no_strings() -> None:
    body = CHAT | {"messages": [{"role": "user", "content": '"' * 3 * json_body.MAX_STRINGS}]}
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200


async def test_a_body_that_stops_halfway_gives_its_room_back() -> None:
    async def chunks() -> Any:
        yield b" " * 2000
        await asyncio.Event().wait()

    async with gateway_client(body_timeout_s=0.05) as client:
        headers = {"content-type": "application/json"}
        response = await asyncio.wait_for(client.post("/v1/completions", content=chunks(), headers=headers), 10)
        assert bodies_of(client).used_bytes == 0
    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")


MIB = 1 << 20


def bodies_of(client: httpx.AsyncClient) -> BodyBudget:
    """What the gateway behind a client knows of the bodies of live requests."""
    budget: BodyBudget = client._transport.app.state.gateway.bodies  # type: ignore[attr-defined]
    return budget


@pytest.mark.parametrize(("wait_s", "status"), [(0, 429), (20, 200)])
async def test_bodies_of_live_requests_are_bounded_together(wait_s: float, status: int) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> Any:
        yield b" " * 1500
        begun.set()
        await go_on.wait()
        yield orjson.dumps(CHAT)

    async with gateway_client(max_live_body_bytes=2 * MIB, body_wait_s=wait_s, max_body_bytes=MIB) as client:
        headers = {"content-type": "application/json"}
        first = asyncio.create_task(client.post("/v1/chat/completions", content=slow(), headers=headers))
        await begun.wait()
        large = b" " * 200_000 + orjson.dumps(CHAT)
        second = asyncio.create_task(client.post("/v1/chat/completions", content=large, headers=headers))
        small = await client.post("/v1/chat/completions", json=CHAT)
        if wait_s:
            await until(lambda: bodies_of(client).num_waiting == 1)
            assert "triptych_gateway_bodies_waiting 1.0" in (await client.get("/metrics")).text.splitlines()
        else:
            await second
        go_on.set()
        assert (await first).status_code == 200
        answered = await second
        after = await client.post("/v1/chat/completions", content=b" " * 600 + orjson.dumps(CHAT), headers=headers)
        assert bodies_of(client).used_bytes == 0
        assert "triptych_gateway_bodies_waiting 0.0" in (await client.get("/metrics")).text.splitlines()
    assert answered.status_code == status
    if status == 429:
        assert (answered.json()["error"]["code"], answered.headers["retry-after"]) == ("queue_full", "1")
        assert "max_live_body_bytes" in answered.json()["error"]["message"]
    assert after.status_code == 200, "what was held is released"
    assert small.status_code == 200, "a text does not wait behind pictures"


async def test_unknown_model() -> None:
    async with gateway_client() as client:
        responses = [
            await client.post("/v1/chat/completions", json=CHAT | {"model": "other", "stream": True}),
            await client.post("/v1/completions", json=COMPLETION | {"model": "other"}),
            await client.post("/tokenize", json={"model": "other", "prompt": "x"}),
            await client.get("/v1/models/other"),
        ]
    for response in responses:
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v2", 404), ("GET", "/v1/completions", 405), ("PUT", "/live", 405)]
)
async def test_unknown_routes_and_methods(method: str, path: str, status: int) -> None:
    async with gateway_client() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/messages/batches", "not served here; nearest: POST /v1/batches, in OpenAI's format"),
        ("/v1/assistants/asst_1", "not served here; nearest: POST /v1/responses keeps a conversation, with previous_response_id"),
        (
            "/v1/images/generations",
            "not served here; nearest: this server makes text; pictures are read by POST /v1/chat/completions",
        ),
        ("/chat/completions", "not served here; nearest: POST /v1/chat/completions: the base URL ends with /v1"),
        ("/v1/v1/models", "not served here; nearest: the base URL has /v1 twice"),
        ("/v1/nothing", "no such path"),
    ],
)
async def test_paths_that_are_known_elsewhere_name_what_is_nearest(path: str, message: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json={})
    assert response.status_code == 404
    assert response.json()["error"] == {"message": message, "type": "invalid_request_error", "param": None, "code": "not_found"}
