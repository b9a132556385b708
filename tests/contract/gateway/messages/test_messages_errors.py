"""Errors of /v1/messages have Anthropic's shape, and the official client maps them to its classes."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from support.drivers.anthropic import HI, WEATHER, async_client, sse
from support.fakes.frontend import FakeFrontend, fails
from support.fakes.gateway import client_of, gateway_app, gateway_client
from triptych.errors import ContextLengthError, InternalError, InvalidRequestError, QueueFullError, ServiceUnavailableError

USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]}


async def refused(body: dict[str, Any], frontend: FakeFrontend | None = None, path: str = "/v1/messages") -> dict[str, Any]:
    """The error of a request that is refused with 400."""
    async with gateway_client(frontend or FakeFrontend()) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    answer = response.json()
    assert set(answer) == {"type", "error", "request_id"}
    assert (answer["type"], answer["error"]["type"]) == ("error", "invalid_request_error")
    assert answer["request_id"] == response.headers["request-id"]
    error: dict[str, Any] = answer["error"]
    return error


@pytest.mark.parametrize(
    ("error", "kind", "name"),
    [
        (InvalidRequestError("no"), anthropic.BadRequestError, "invalid_request_error"),
        (ContextLengthError("too long"), anthropic.BadRequestError, "invalid_request_error"),
        (QueueFullError("full"), anthropic.RateLimitError, "rate_limit_error"),
        (ServiceUnavailableError("away"), anthropic.InternalServerError, "overloaded_error"),
        (InternalError("broken"), anthropic.InternalServerError, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_before_the_first_event(error: Exception, kind: type[anthropic.APIStatusError], name: str, stream: bool) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(error)  # type: ignore[arg-type]
    async with async_client(frontend) as client:
        with pytest.raises(kind) as raised:
            await client.messages.create(**HI, stream=stream)
    assert raised.value.type == name
    assert raised.value.request_id
    assert (raised.value.response.headers.get("retry-after") is not None) == (name in ("rate_limit_error", "overloaded_error"))


async def test_after_the_first_event() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ServiceUnavailableError("the engine is away"), after=1)
    async with async_client(frontend) as client, client.messages.stream(**HI) as stream:
        with pytest.raises(anthropic.APIStatusError, match="the engine is away") as raised:
            await stream.get_final_message()
    assert raised.value.type == "overloaded_error"
    async with gateway_client(frontend) as plain:
        response = await plain.post("/v1/messages", json=HI | {"stream": True})
    *_, (name, data) = sse(response.content)
    assert name == "error"
    assert b"overloaded_error" in data


async def test_an_unknown_model() -> None:
    async with async_client(FakeFrontend()) as client:
        with pytest.raises(anthropic.NotFoundError, match="no model 'claude'"):
            await client.messages.create(**HI | {"model": "claude"})


async def test_a_body_that_is_too_large() -> None:
    async with async_client(FakeFrontend(), max_body_bytes=1024) as client:
        with pytest.raises(anthropic.APIStatusError) as raised:
            await client.messages.create(**HI, system="x" * 5000)
    assert (raised.value.status_code, raised.value.type) == (413, "request_too_large")


async def test_a_wrong_key() -> None:
    async with async_client(FakeFrontend(), client_key="wrong", api_key="secret") as client:
        with pytest.raises(anthropic.AuthenticationError) as raised:
            await client.messages.create(**HI)
    assert raised.value.type == "authentication_error"
    async with async_client(FakeFrontend(), client_key="secret", api_key="secret") as client:
        await client.messages.create(**HI)


async def test_the_key_may_stand_in_two_headers() -> None:
    async with gateway_app(FakeFrontend(), api_key="secret") as app, client_of(app) as client:
        for headers in ({}, {"x-api-key": "wrong"}, {"authorization": "Bearer wrong"}, {"authorization": "Basic secret"}):
            response = await client.post("/v1/messages", json=HI, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["type"] == "authentication_error"
        for headers in (
            {"x-api-key": "secret"},
            {"authorization": "Bearer secret"},
            # A client may have a key of its own in the environment beside the token that it was given.
            {"x-api-key": "other", "authorization": "Bearer secret"},
        ):
            assert (await client.post("/v1/messages", json=HI, headers=headers)).status_code == 200


async def test_beta_headers_change_nothing() -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "output-128k-2025-02-19,token-efficient-tools-2025-02-19"}
    async with gateway_client() as client:
        response = await client.post("/v1/messages?beta=true", json=HI, headers=headers)
    assert response.json()["content"] == [{"type": "text", "text": "Hello"}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": None}, "max_tokens: "),
        ({"messages": []}, "messages: "),
        ({"temprature": 1}, "temprature: unknown field"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0]: role must be one of 'user', 'assistant', 'system'"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0]: type must be one of"),
        ({"messages": [{"role": "user", "content": [USED["content"][0]]}]}, "given: 'tool_use'"),  # type: ignore[index]
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content: "),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t9"}]}]},
            "messages[0].content[0].tool_use_id: no earlier message has a tool_use block of this id",
        ),
        ({"messages": [*HI["messages"], USED]}, "messages[1]: calls tools"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?" * 5000}}],
                    }
                ]
            },
            "messages[0].content[0].source.data: must be a string in base64",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}}
                        ],
                    }
                ]
            },
            "messages[0].content[0].source: type must be one of 'text', 'content'; given: 'base64'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
            "type must be one of 'base64', 'url'; given: 'file'",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name: another tool has the name 'get_weather' already"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]: 'bash_20250124' is a tool of Anthropic's"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name: "),
        ({"tool_choice": {"type": "any"}}, "tool_choice: 'any' needs tools; there are none"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name: no tool has the name 'x'"),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 64}},
            "thinking.budget_tokens: must be less than max_tokens (64); given: 64",
        ),
        ({"thinking": {"type": "between_tools"}}, "thinking: type must be one of 'enabled', 'adaptive', 'disabled'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: this field is required"),
    ],
)
async def test_bad_input_is_named(change: dict[str, Any], said: str) -> None:
    assert said in (await refused(HI | change))["message"]


async def test_a_schema_that_is_nested_too_deeply() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(120):
        schema = {"type": "object", "properties": {"a": schema}}
    error = await refused(HI | {"tools": [WEATHER | {"input_schema": schema}]})
    assert error["message"] == "tools[0].input_schema: nested too deeply; at most 200 levels are allowed"


async def test_a_file_in_a_place_that_takes_none() -> None:
    metadata = {"user_id": "u", "source": {"data": "A" * 8000}}
    assert "metadata.source" in (await refused(HI | {"metadata": metadata}))["message"]
    title = [{"type": "text", "text": "a", "x": {"source": {"data": "A" * 8000}}}]
    error = await refused(HI | {"messages": [{"role": "user", "content": title}]})
    assert error["message"] == "the body has the address of a file in a place that takes none"


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("options.sampling.top_p", "top_p"),
        ("options.stop[1]", "stop_sequences[1]"),
        ("options.constraint.json_schema", "output_config.format.schema"),
        ("tools[0].parameters_json_schema", "tools[0].input_schema"),
        ("reasoning.max_tokens", "thinking.budget_tokens"),
        ("reasoning.effort", "output_config.effort"),
        ("messages[0]", "system"),
        ("messages[1]", "messages[0]"),
        ("messages[1].content[0].media.format", "messages[0].content[0].format"),
        ("tool_choice", "tool_choice"),
    ],
)
async def test_errors_of_the_frontend_name_the_clients_fields(field: str, name: str) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InvalidRequestError(f"{field}: is wrong", field=field))
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.org"}}
    body = HI | {"system": "s", "messages": [{"role": "user", "content": [picture]}], "tools": [WEATHER]}
    assert (await refused(body, frontend))["message"] == f"{name}: is wrong"


async def test_count_tokens_refuses_what_it_does_not_take() -> None:
    error = await refused(HI, path="/v1/messages/count_tokens")
    assert error["message"] == "max_tokens: unknown field"
