"""Every route of the application with every kind of key. A route without a row here fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from fastapi.routing import iter_route_contexts
from support.fakes.frontend import MODEL
from support.fakes.gateway import CHAT, COMPLETION, FakeFrontend, client_of, gateway_app, gateway_client, gateway_server
from support.keys import PAST, KeyStore, secret_of
from triptych_gateway.access.routes import Access
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings
from websockets.exceptions import InvalidStatus

_MODEL = {"model": MODEL.name}
_RESPONSE = "/v1/responses/resp_" + "0" * 32
_AUDIO = {"data": _MODEL, "files": {"file": ("a.wav", b"RIFF")}}


@dataclass(frozen=True)
class Row:
    """What a test knows of a route.

    Args:
        path: with its parameters filled in.
        request: arguments of the client for a request that is served.
        has_model: whether the request names a model.
        dialect: whose shape errors have: openai, anthropic or ollama.
        is_there: whether the gateway of this test has what the route is about.
    """

    access: Access = Access.KEY
    path: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    has_model: bool = True
    dialect: str = "openai"
    is_there: bool = True


def body(fields: dict[str, Any], **more: Any) -> Row:
    return Row(request={"json": fields}, **more)


OPEN = Row(Access.OPEN)
MANAGED = Row(Access.OPERATOR, request={"json": {"name": "m"}}, has_model=False, is_there=False)
#: The gateway of this test keeps no files; `batches/` tests those that do.
KEPT = Row(has_model=False, is_there=False)
_BATCH = {"input_file_id": "a", "endpoint": "/v1/completions", "completion_window": "24h"}
STORED = Row(path=_RESPONSE, has_model=False)
ROWS: dict[tuple[str, str], Row] = {
    ("GET", "/openapi.json"): OPEN,
    ("POST", "/v1/chat/completions"): body(CHAT),
    ("POST", "/v1/completions"): body(COMPLETION),
    ("POST", "/v1/chat/completions/render"): body(CHAT),
    ("WEBSOCKET", "/v1/responses"): Row(has_model=False),
    ("POST", "/v1/responses"): body({**_MODEL, "input": "Hi"}),
    ("POST", "/v1/responses/compact"): body({**_MODEL, "input": "Hi"}),
    ("POST", "/v1/responses/input_tokens"): body({**_MODEL, "input": "Hi"}),
    ("GET", "/v1/responses/{response_id}"): STORED,
    ("DELETE", "/v1/responses/{response_id}"): STORED,
    ("POST", "/v1/responses/{response_id}/cancel"): Row(path=f"{_RESPONSE}/cancel", has_model=False),
    ("GET", "/v1/responses/{response_id}/input_items"): Row(path=f"{_RESPONSE}/input_items", has_model=False),
    ("POST", "/v1/messages"): body({**CHAT, "max_tokens": 9}, dialect="anthropic"),
    ("POST", "/v1/messages/count_tokens"): body(CHAT, dialect="anthropic"),
    ("POST", "/api/chat"): body(CHAT, dialect="ollama"),
    ("POST", "/api/generate"): body({**_MODEL, "prompt": "x"}, dialect="ollama"),
    ("POST", "/api/embed"): body({**_MODEL, "input": "x"}, dialect="ollama"),
    ("POST", "/api/embeddings"): body({**_MODEL, "prompt": "x"}, dialect="ollama"),
    ("POST", "/api/show"): body(_MODEL, dialect="ollama"),
    ("GET", "/api/tags"): Row(has_model=False, dialect="ollama"),
    ("GET", "/api/ps"): Row(has_model=False, dialect="ollama"),
    ("GET", "/api/version"): OPEN,
    ("POST", "/v1/audio/transcriptions"): Row(request=_AUDIO),
    ("POST", "/v1/audio/translations"): Row(request=_AUDIO),
    ("GET", "/v1/files"): KEPT,
    ("POST", "/v1/files"): KEPT,
    ("GET", "/v1/files/{file_id}"): KEPT,
    ("DELETE", "/v1/files/{file_id}"): KEPT,
    ("GET", "/v1/files/{file_id}/content"): KEPT,
    ("POST", "/v1/uploads"): replace(KEPT, request={"json": {"bytes": 1, "filename": "a", "mime_type": "b", "purpose": "vision"}}),
    ("POST", "/v1/uploads/{upload_id}/parts"): KEPT,
    ("POST", "/v1/uploads/{upload_id}/complete"): replace(KEPT, request={"json": {"part_ids": ["a"]}}),
    ("POST", "/v1/uploads/{upload_id}/cancel"): KEPT,
    ("GET", "/v1/batches"): KEPT,
    ("POST", "/v1/batches"): replace(KEPT, request={"json": _BATCH}),
    ("GET", "/v1/batches/{batch_id}"): KEPT,
    ("POST", "/v1/batches/{batch_id}/cancel"): KEPT,
    ("GET", "/v1/models"): Row(has_model=False),
    ("GET", "/v1/models/{name:path}"): Row(path=f"/v1/models/{MODEL.name}"),
    ("POST", "/tokenize"): body({**_MODEL, "prompt": "x"}),
    ("POST", "/detokenize"): body({**_MODEL, "tokens": [72]}),
    ("POST", "/v1/embeddings"): body({**_MODEL, "input": "x"}),
    ("POST", "/pooling"): body({**_MODEL, "input": ["x"]}),
    ("POST", "/classify"): body({**_MODEL, "input": ["x"]}),
    ("POST", "/score"): body({**_MODEL, "text_1": "x", "text_2": "y"}),
    ("POST", "/v1/score"): body({**_MODEL, "text_1": "x", "text_2": "y"}),
    ("POST", "/rerank"): body({**_MODEL, "query": "x", "documents": ["y"]}),
    ("POST", "/v1/rerank"): body({**_MODEL, "query": "x", "documents": ["y"]}),
    ("POST", "/v2/rerank"): body({**_MODEL, "query": "x", "documents": ["y"]}),
    ("GET", "/health"): OPEN,
    ("GET", "/live"): OPEN,
    ("GET", "/ready"): OPEN,
    ("GET", "/version"): OPEN,
    ("GET", "/metrics"): Row(Access.OPERATOR, has_model=False),
    ("GET", "/load"): Row(Access.OPERATOR, has_model=False),
    ("GET", "/admin/models"): MANAGED,
    ("POST", "/admin/models/load"): replace(MANAGED, request={"json": {"source": "m"}}),
    **{("POST", f"/admin/models/{what}"): MANAGED for what in ("unload", "sleep", "wake", "pin", "unpin")},
    ("GET", "/docs"): OPEN,
    ("GET", "/"): OPEN,
    ("GET", "/docs/assets"): Row(Access.OPEN, path="/docs/assets/favicon.png"),
    ("GET", "/playground"): Row(Access.OPEN, path="/playground/main.js"),
}


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of all routes that the application serves."""
    for route in iter_route_contexts(create_app(GatewaySettings()).routes):
        is_websocket = type(route.route).__name__ == "WebSocketRoute"
        methods = {"WEBSOCKET"} if is_websocket else (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}
        for method in methods:
            yield method, str(route.path)


ROUTES = sorted(routes())
CLOSED = [route for route in ROUTES if ROWS.get(route, Row()).access is not Access.OPEN and route[0] != "WEBSOCKET"]


def test_every_route_has_a_row() -> None:
    assert set(ROUTES) == ROWS.keys()


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    store = KeyStore(tmp_path / "keys.json")
    store.add("good", operator=True)
    store.add("tenant")
    store.add("revoked", operator=True, revoked=PAST)
    store.add("expired", operator=True, expires=PAST)
    store.add("other model", operator=True, models=["another/model"])
    store.add("over its rate", operator=True, requests_per_minute=1)
    store.add("over its tokens", operator=True, tokens_per_minute=1)
    good, tenant = store.texts["good"], store.texts["tenant"]
    store.texts["with the secret of another"] = good.replace(secret_of(good), secret_of(tenant))
    store.texts["of an unknown id"] = good.replace(store.id("good"), "0" * 10)
    store.texts["of another form"] = "secret"
    return store


UNACCEPTED = ("revoked", "expired", "with the secret of another", "of an unknown id", "of another form")


async def ask(client: httpx.AsyncClient, route: tuple[str, str], headers: dict[str, str]) -> httpx.Response:
    row = ROWS[route]
    return await client.request(route[0], row.path or route[1], headers=headers, **row.request)


def code_of(response: httpx.Response, row: Row) -> str:
    """OpenAI's code, or Anthropic's type; empty for Ollama. The body must have the shape of the route's dialect."""
    answer = response.json()
    if row.dialect == "ollama":
        assert set(answer) == {"error"}
        assert isinstance(answer["error"], str)
        return ""
    if row.dialect == "anthropic":
        assert set(answer) == {"type", "error", "request_id"}
        return str(answer["error"]["type"])
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return str(answer["error"]["code"])


def expected(row: Row, openai: str, anthropic: str) -> str:
    """The code that a route's dialect has."""
    return {"openai": openai, "anthropic": anthropic, "ollama": ""}[row.dialect]


@pytest.mark.parametrize("route", CLOSED, ids=" ".join)
async def test_a_closed_route(route: tuple[str, str], keys: KeyStore) -> None:
    row = ROWS[route]
    async with gateway_client(api_keys_file=keys.path) as client:
        none = await ask(client, route, {})
        assert none.status_code == 401
        assert none.headers["www-authenticate"] == "Bearer"
        refused = [await ask(client, route, keys.headers(name)) for name in UNACCEPTED]
        assert {answer.status_code for answer in refused} == {401}
        messages = {answer.json()["error"] if row.dialect == "ollama" else answer.json()["error"]["message"] for answer in refused}
        assert len(messages) == 1, "the answer tells which keys there are or were"
        assert {code_of(answer, row) for answer in (none, *refused)} == {expected(row, "invalid_api_key", "authentication_error")}

        good = await ask(client, route, keys.headers("good"))
        assert good.status_code in (200, 404), good.text
        assert (good.status_code == 404) == (row.path.startswith(_RESPONSE) or not row.is_there), (
            "only what is not there is not found"
        )

        if row.has_model:
            other = await ask(client, route, keys.headers("other model"))
            assert other.status_code == 403
            assert code_of(other, row) == expected(row, "model_not_found", "permission_error")

        first = await ask(client, route, keys.headers("over its rate"))
        assert first.status_code == good.status_code
        assert (first.headers["x-ratelimit-limit-requests"], first.headers["x-ratelimit-remaining-requests"]) == ("1", "0")
        over = await ask(client, route, keys.headers("over its rate"))
        assert over.status_code == 429
        assert 1 <= int(over.headers["retry-after"]) <= 60
        assert over.headers["x-ratelimit-remaining-requests"] == "0"
        assert code_of(over, row) == expected(row, "rate_limit_exceeded", "rate_limit_error")

        tenant = await ask(client, route, keys.headers("tenant"))
        assert tenant.status_code == (403 if row.access is Access.OPERATOR else good.status_code)


#: Routes that generate or pool, and so take of the tokens of a key.
_FREE = {
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions/render",
    "/api/show",
}
USING_TOKENS = [route for route in CLOSED if route[0] == "POST" and ROWS[route].has_model and route[1] not in _FREE]


@pytest.mark.parametrize("route", USING_TOKENS, ids=" ".join)
async def test_a_route_takes_of_the_tokens_of_its_key(route: tuple[str, str], keys: KeyStore) -> None:
    async with gateway_client(api_keys_file=keys.path) as client:
        first = await ask(client, route, keys.headers("over its tokens"))
        assert first.status_code == 200, first.text
        assert first.headers["x-ratelimit-limit-tokens"] == "1"
        second = await ask(client, route, keys.headers("over its tokens"))
        assert second.status_code == 429
        assert int(second.headers["retry-after"]) > 60, "more was used than a minute gives"
        free = await client.get("/v1/models", headers=keys.headers("over its tokens"))
        assert (free.status_code, free.headers["x-ratelimit-remaining-tokens"]) == (200, "0")


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if ROWS.get(route) and ROWS[route].access is Access.OPEN], ids=" ".join
)
async def test_an_open_route(route: tuple[str, str], keys: KeyStore) -> None:
    async with gateway_client(api_keys_file=keys.path) as client:
        for headers in ({}, *(keys.headers(name) for name in UNACCEPTED)):
            # 503: of /ready, while no frontend is.
            assert (await ask(client, route, headers)).status_code in (200, 503)


@pytest.mark.parametrize("name", [None, *UNACCEPTED])
async def test_a_websocket_without_an_accepted_key(name: str | None, keys: KeyStore) -> None:
    headers = keys.headers(name) if name else {}
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path) as (host, port):
        with pytest.raises(InvalidStatus) as caught:
            await websockets.connect(f"ws://{host}:{port}/v1/responses", additional_headers=headers)
    assert caught.value.response.status_code == 401


async def test_a_websocket_over_the_keys_rate(keys: KeyStore) -> None:
    async with gateway_server(FakeFrontend(), api_keys_file=keys.path) as (host, port):
        address, headers = f"ws://{host}:{port}/v1/responses", keys.headers("over its rate")
        async with websockets.connect(address, additional_headers=headers):
            with pytest.raises(InvalidStatus) as caught:
                await websockets.connect(address, additional_headers=headers)
    assert caught.value.response.status_code == 429
    assert caught.value.response.headers["retry-after"]


async def test_the_single_key_may_do_everything() -> None:
    async with gateway_app(FakeFrontend(), api_key="the only key") as app, client_of(app) as client:
        for route in CLOSED:
            answer = await ask(client, route, {"x-api-key": "the only key"})
            assert answer.status_code in (200, 404), route
            assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_both_kinds_of_keys_may_be_set(keys: KeyStore) -> None:
    async with gateway_client(api_key="the only key", api_keys_file=keys.path) as client:
        answers = [
            await client.get("/v1/models", headers=headers)
            for headers in ({"x-api-key": "the only key"}, {"x-api-key": keys.texts["tenant"]}, keys.headers("tenant"), {})
        ]
        # A client may send one header of its own and one of a proxy.
        both = await client.get("/v1/models", headers={"x-api-key": "wrong", **keys.headers("tenant")})
    assert [answer.status_code for answer in (*answers, both)] == [200, 200, 200, 401, 200]
