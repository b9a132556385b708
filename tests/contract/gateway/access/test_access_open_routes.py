"""Which routes are open: those that say so, and no others."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import CHAT, client_of, gateway_app, gateway_client
from support.keys import KeyStore
from triptych_gateway.access.routes import Access, AccessPaths, AccessRouter
from triptych_gateway.app import ROUTERS

OPEN = {"/health", "/live", "/ready", "/version", "/api/version", "/docs", "/openapi.json", "/"}


async def test_all_routes_but_the_operators_need_the_key() -> None:
    async with gateway_app(FakeFrontend(), api_key="secret") as app, client_of(app) as client:
        paths = {str(getattr(route, "path", "")) for router in ROUTERS for route in router.routes} | {"/openapi.json"}
        statuses = {path: (await client.get(path)).status_code for path in paths}
    assert {path for path, status in statuses.items() if status != 401} == OPEN


async def test_an_endpoint_picker_reads_the_load_without_a_key_and_no_more(tmp_path: Path) -> None:
    keys = KeyStore(tmp_path / "keys.json")
    keys.add("tenant", tenant="a"), keys.add("operator", operator=True)
    log = tmp_path / "audit.jsonl"
    options = {"api_keys_file": keys.path, "load_metrics_without_key": True, "audit_log": str(log)}
    async with gateway_app(FakeFrontend(), **options) as app, client_of(app) as client:
        bare, refused, whole = [
            await client.get("/metrics", headers=headers) for headers in ({}, keys.headers("tenant"), keys.headers("operator"))
        ]
        wrong = await client.get("/metrics", headers={"authorization": "Bearer wrong"})
        assert (await client.get("/load")).status_code == 401
    names = {family.name for family in text_string_to_metric_families(bare.text)}
    assert names == {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"}
    assert {"triptych_gateway_tenant_requests", *names} <= {family.name for family in text_string_to_metric_families(whole.text)}
    assert (wrong.status_code, refused.status_code) == (401, 403)
    # What needed no key is not in the log.
    assert [orjson.loads(line)["status"] for line in log.read_bytes().splitlines()] == [403, 200, 401, 401]


async def test_without_keys_everybody_reads_all_metrics() -> None:
    async with gateway_client(load_metrics_without_key=True) as client:
        assert "triptych_gateway_tenant_requests" in (await client.get("/metrics")).text


@pytest.mark.parametrize("path", ["/pooling", "/v2/anything", "/docs/assets", "/playground", "//", "/health/", "/Health", "//live"])
async def test_what_nobody_thought_of_is_closed(path: str) -> None:
    async with gateway_client(api_key="secret") as client:
        # With the host, because a path that starts with two slashes would be taken for one.
        assert (await client.get(f"http://gateway{path}")).status_code == 401


def test_a_router_must_say_who_may_call_it() -> None:
    with pytest.raises(TypeError, match="access"):
        AccessRouter()  # type: ignore[call-arg]


def test_an_open_path_with_a_parameter_would_open_more_than_it_says() -> None:
    router = AccessRouter(access=Access.OPEN)
    router.add_api_route("/files/{path:path}", lambda: None)
    with pytest.raises(ValueError, match="parameter"):
        AccessPaths([router])


async def test_callers_are_anonymous_for_now() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
    assert [context.tenant for context in frontend.contexts] == [""]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "fake/model", "model": "fake/model", "messages": []}',
        b'{"model": "fake/model", "messages": [{"role": "user", "content": "a", "content": "b"}]}',
        b'{"model": "fake/model", "messages": [], "temperature": 0, "chat_template_kwargs": {"a": {"b": 1, "b": 2}}}',
    ],
)
async def test_a_name_that_stands_twice_in_an_object_is_refused(body: bytes) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "twice" in response.json()["error"]["message"]


async def test_an_assistants_turn_may_have_no_content() -> None:
    frontend = FakeFrontend()
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None}, {"role": "assistant"}]
    async with gateway_client(frontend) as client:
        taken = await client.post("/v1/chat/completions", json=CHAT | {"messages": turns})
        refused = await client.post("/v1/chat/completions", json=CHAT | {"messages": [{"role": "user", "content": None}]})
    assert taken.status_code == 200
    assert [message.role for message in frontend.request.messages] == ["user", "assistant", "assistant"]  # type: ignore[union-attr]
    assert refused.json()["error"]["param"] == "messages[0].content"
