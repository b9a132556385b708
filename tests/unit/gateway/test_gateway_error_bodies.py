"""A router's own error body is used for its routes, whatever the error, and nowhere else."""

from __future__ import annotations

import httpx
import orjson
import pytest
from fastapi import Request
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import client_of, gateway_app
from triptych.errors import QueueFullError
from triptych_gateway import app as gateway_module
from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.apis.json_body import JsonRoute
from triptych_gateway.apis.tokens import DetokenizeRequest
from triptych_gateway.wire.errors import ApiError


def own_body(error: ApiError, request_id: str) -> bytes:
    return orjson.dumps({"own": error.message, "status": error.status, "request_id": request_id})


router = AccessRouter(access=Access.KEY, route_class=JsonRoute, error_body=own_body)


@router.post("/other/things")
async def things(body: DetokenizeRequest) -> None:
    raise QueueFullError("full", retry_after_s=3)


@router.get("/other/things/{name}")
async def thing(name: str, request: Request) -> None:
    raise KeyError(name)


async def responses(monkeypatch: pytest.MonkeyPatch, *calls: tuple[str, str, object], **headers: str) -> list[httpx.Response]:
    monkeypatch.setattr(gateway_module, "ROUTERS", (*gateway_module.ROUTERS, router))
    async with gateway_app(FakeFrontend(), api_key="k") as app, client_of(app) as client:
        headers = {"authorization": "Bearer k", "x-request-id": "r-1"} | headers
        return [await client.request(method, path, json=body, headers=headers) for method, path, body in calls]


async def test_own_body_for_every_kind_of_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = (("POST", "/other/things", {"tokens": [1]}), ("POST", "/other/things", {}), ("GET", "/other/things/x", None))
    full, invalid, failed = await responses(monkeypatch, *calls)
    assert (full.status_code, full.headers["retry-after"]) == (429, "3")
    assert full.json() == {"own": "full", "status": 429, "request_id": "r-1"}
    assert (invalid.status_code, invalid.json()["own"]) == (400, "tokens: this field is required")
    assert (failed.status_code, failed.json()["own"]) == (500, "internal error; the gateway's log has the details")


async def test_own_body_when_the_key_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    (refused,) = await responses(monkeypatch, ("POST", "/other/things", {}), authorization="Bearer x")
    assert (refused.status_code, refused.json()["own"]) == (401, "wrong API key, or one that is no longer valid")


async def test_other_routes_keep_their_body(monkeypatch: pytest.MonkeyPatch) -> None:
    for response in await responses(monkeypatch, ("POST", "/detokenize", {}), ("GET", "/other", None)):
        assert set(response.json()) == {"error"}
