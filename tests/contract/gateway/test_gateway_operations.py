"""Models, tokens, health, metrics, docs, API key, CORS."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import CHAT, gateway_client
from triptych_common import __version__
from triptych_common.telemetry.logs import request_id_var


async def test_models() -> None:
    async with gateway_client() as client:
        listed = (await client.get("/v1/models")).json()
        one = (await client.get(f"/v1/models/{MODEL.name}")).json()
    assert listed["object"] == "list"
    assert listed["data"] == [one]
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL.name, "model", 2048)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ({"prompt": "ab"}, {"count": 3, "max_model_len": 2048, "tokens": [0, 97, 98], "token_strs": None}),
        (
            {"prompt": "a", "add_special_tokens": False, "return_token_strs": True, "model": MODEL.name},
            {"count": 1, "max_model_len": 2048, "tokens": [97], "token_strs": ["a"]},
        ),
        ({"messages": CHAT["messages"]}, {"count": 2, "max_model_len": 2048, "tokens": [72, 105], "token_strs": None}),
    ],
    ids=["prompt", "strings", "messages"],
)
async def test_tokenize(body: dict[str, Any], answer: dict[str, Any]) -> None:
    async with gateway_client() as client:
        response = await client.post("/tokenize", json=body)
    assert response.json() == answer


async def test_detokenize() -> None:
    async with gateway_client() as client:
        response = await client.post("/detokenize", json={"tokens": [72, 105]})
    assert response.json() == {"prompt": "Hi"}


async def test_version() -> None:
    async with gateway_client() as client:
        assert (await client.get("/version")).json() == {"version": __version__}


async def test_metrics_count_requests_and_tokens() -> None:
    async with gateway_client() as client:
        await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        await client.post("/v1/chat/completions", json=CHAT | {"n": 0})
        await client.get("/no/such/path")
        text = (await client.get("/metrics")).text
    for line in (
        'triptych_gateway_requests_total{route="/v1/chat/completions",status="200"} 1.0',
        'triptych_gateway_requests_total{route="/v1/chat/completions",status="400"} 1.0',
        'triptych_gateway_requests_total{route="unmatched",status="404"} 1.0',
        "triptych_gateway_prompt_tokens_total 7.0",
        "triptych_gateway_cached_tokens_total 2.0",
        "triptych_gateway_completion_tokens_total 3.0",
        'triptych_gateway_time_to_first_token_seconds_count{route="/v1/chat/completions"} 1.0',
        'triptych_gateway_inter_token_seconds_count{route="/v1/chat/completions"} 1.0',
        "triptych_gateway_requests_in_flight 1.0",
    ):
        assert line in text.splitlines()


async def test_docs_need_nothing_from_elsewhere() -> None:
    async with gateway_client() as client:
        page = (await client.get("/docs")).text
        assets = re.findall(r'(?:src|href)="([^"]+)"', page)
        statuses = [(await client.get(path)).status_code for path in [*assets, "/openapi.json"]]
    assert len(assets) == 3
    assert all(path.startswith("/") for path in assets)
    assert set(statuses) == {200}


async def test_openapi_document() -> None:
    async with gateway_client() as client:
        document = (await client.get("/openapi.json")).json()
    chat = document["paths"]["/v1/chat/completions"]["post"]
    reference = chat["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    assert schema["required"] == ["model", "messages"]
    assert schema["additionalProperties"] is False
    assert set(chat["responses"]) == {"200", "4XX", "5XX"}
    assert set(chat["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
    assert "HTTPValidationError" not in document["components"]["schemas"]


@pytest.mark.parametrize(("api_key", "is_guarded"), [("secret", True), (None, False)])
async def test_openapi_document_tells_which_routes_need_the_key(api_key: str | None, is_guarded: bool) -> None:
    async with gateway_client(api_key=api_key) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert ("security" in paths["/v1/chat/completions"]["post"]) == is_guarded
    assert ("security" in paths["/tokenize"]["post"]) == is_guarded
    assert "security" not in paths["/live"]["get"]


@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/v1/nothing"])
@pytest.mark.parametrize("given", [None, "Bearer wrong", "secret", "Bearer sécret"])
async def test_api_key_is_needed(path: str, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given.encode()}
    async with gateway_client(api_key="secret") as client:
        response = await client.get(path, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


async def test_api_key_opens_and_operators_need_none() -> None:
    async with gateway_client(api_key="secret", cors_allow_origins=("http://page",)) as client:
        models = await client.get("/v1/models", headers={"authorization": "Bearer secret"})
        lower = await client.get("/v1/models", headers={"authorization": "bearer secret"})
        live = await client.get("/live")
        preflight = await client.options(
            "/v1/chat/completions", headers={"origin": "http://page", "access-control-request-method": "POST"}
        )
    assert [response.status_code for response in (models, lower, live, preflight)] == [200, 200, 200, 200]


async def test_cors() -> None:
    async with gateway_client(FakeFrontend(), cors_allow_origins=("http://page",)) as client:
        allowed = await client.get("/live", headers={"origin": "http://page"})
        other = await client.get("/live", headers={"origin": "http://other"})
        refusal = await client.post("/v1/completions", json={}, headers={"origin": "http://page"})
    assert allowed.headers["access-control-allow-origin"] == "http://page"
    assert "access-control-allow-origin" not in other.headers
    assert refusal.headers["access-control-allow-origin"] == "http://page"


async def test_access_log_has_one_line_per_request_with_its_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="triptych_gateway.access.middleware")
    caplog.handler.addFilter(with_request_id)
    async with gateway_client() as client:
        await client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers={"x-request-id": "r-1"})
        await client.get("/live")
    (line,) = [record for record in caplog.records if record.name == "triptych_gateway.access.middleware"]
    assert re.fullmatch(r"POST /v1/chat/completions 200 [0-9.]+ ms 3 tokens", line.getMessage())
    assert line.__dict__["request_id"] == "r-1"


def with_request_id(record: logging.LogRecord) -> bool:
    record.request_id = request_id_var.get()
    return True


async def test_access_log_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="triptych_gateway.access.middleware")
    async with gateway_client(access_log=False) as client:
        await client.post("/v1/chat/completions", json=CHAT)
    assert not [record for record in caplog.records if record.name == "triptych_gateway.access.middleware"]
