"""Every field of Anthropic's requests has its effect, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_params
from support.drivers.anthropic import HI, WEATHER
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.messages.schema import CountTokensRequest, MessagesRequest
from triptych_gateway.wire.schema import NoOp

ChatRequest = generation_pb2.ChatRequest
SCHEMA = {"type": "json_schema", "schema": {"type": "object"}}
#: Field -> fields of the request with it, and what the frontend's request shows of it. `None`: accepted, without an effect.
HONOURED: dict[str, tuple[dict[str, Any], Callable[[ChatRequest], bool] | None]] = {
    "model": ({}, lambda request: request.model == HI["model"]),
    "messages": ({}, lambda request: request.messages[0].content[0].text == "Hi"),
    "max_tokens": ({"max_tokens": 3}, lambda request: request.options.sampling.max_tokens == 3),
    "system": ({"system": "s"}, lambda request: request.messages[0].role == "system"),
    "stop_sequences": ({"stop_sequences": ["a", "b"]}, lambda request: list(request.options.stop) == ["a", "b"]),
    "temperature": ({"temperature": 0}, lambda request: request.options.sampling.HasField("temperature")),
    "top_p": ({"top_p": 0.5}, lambda request: request.options.sampling.top_p == 0.5),
    "top_k": ({"top_k": 5}, lambda request: request.options.sampling.top_k == 5),
    "tools": ({"tools": [WEATHER]}, lambda request: request.tools[0].name == "get_weather"),
    "tool_choice": (
        {"tools": [WEATHER], "tool_choice": {"type": "any"}},
        lambda request: request.tool_choice.mode == generation_pb2.ToolChoice.MODE_REQUIRED,
    ),
    "thinking": ({"thinking": {"type": "disabled"}}, lambda request: request.reasoning.effort == "none"),
    "output_config": ({"output_config": {"effort": "high"}}, lambda request: request.reasoning.effort == "high"),
    "output_format": ({"output_format": SCHEMA}, lambda request: request.options.constraint.json_schema == '{"type":"object"}'),
    "metadata": ({"metadata": {"user_id": "u"}}, None),
    "cache_control": ({"cache_control": {"type": "ephemeral", "ttl": "1h"}}, None),
}
#: Field -> a value that is refused.
REFUSED: dict[str, Any] = {
    "service_tier": "priority",
    "container": "c_1",
    "diagnostics": {"previous_message_id": "msg_1"},
    "inference_geo": "us",
    "speed": "fast",
    "user_profile_id": "p",
    "workspace_id": "w",
    "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
    "mcp_servers": [{"type": "url", "url": "https://example.org", "name": "m"}],
    "billing_policy": {"type": "x"},
    "compaction": {"type": "x"},
    "fallback_credit_token": "t",
    "fallbacks": [{"model": "m"}],
    "thread": {"type": "create"},
}
#: Tested where a stream is read.
ELSEWHERE = {"stream"}
#: The client sends this one as a header.
HEADERS = {"betas"}


def test_the_tables_name_every_field() -> None:
    assert set(MessagesRequest.model_fields) == HONOURED.keys() | REFUSED.keys() | ELSEWHERE
    refused = {name for name, info in MessagesRequest.model_fields.items() if any(isinstance(m, NoOp) for m in info.metadata)}
    assert refused == REFUSED.keys()


@pytest.mark.parametrize(
    ("params", "schema"),
    [
        (message_create_params.MessageCreateParamsNonStreaming, MessagesRequest),
        (message_create_params.MessageCreateParamsStreaming, MessagesRequest),
        (beta_params.MessageCreateParamsNonStreaming, MessagesRequest),
        (message_count_tokens_params.MessageCountTokensParams, CountTokensRequest),
    ],
)
def test_no_field_of_the_client_is_unknown(params: Any, schema: Any) -> None:
    assert get_type_hints(params).keys() - HEADERS <= schema.model_fields.keys()


@pytest.mark.parametrize("field", HONOURED)
async def test_honoured(field: str) -> None:
    body, shows = HONOURED[field]
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/messages", json=HI | body)
    assert response.status_code == 200, response.text
    assert isinstance(frontend.request, ChatRequest)
    if shows is not None:
        assert shows(frontend.request)


@pytest.mark.parametrize("field", REFUSED)
async def test_refused(field: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/messages", json=HI | {field: REFUSED[field]})
        taken = await client.post("/v1/messages", json=HI | {field: None})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(f"{field}: not supported")
    assert taken.status_code == 200


#: Fields of tools and blocks: what is refused, and where.
NESTED = {
    "tools[0].defer_loading": {"tools": [WEATHER | {"defer_loading": True}]},
    "tools[0].allowed_callers": {"tools": [WEATHER | {"allowed_callers": ["code_execution_20250825"]}]},
    "messages[0].content[0].citations.enabled": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "document", "source": {"type": "content", "content": "a"}, "citations": {"enabled": True}},
                ],
            }
        ]
    },
    "messages[0].content[0].transformations": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {
                        "type": "image",
                        "source": {"type": "url", "url": "https://a.org"},
                        "transformations": {"oversized_image": "error"},
                    }
                ],
            }
        ]
    },
    "messages[0].content[0].toolset_name": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "toolset_name": "browser"}]}]
    },
}


@pytest.mark.parametrize("field", NESTED)
async def test_nested_fields_are_refused(field: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/messages", json=HI | NESTED[field])
    assert response.json()["error"]["message"].startswith(f"{field}: not supported")


async def test_nested_fields_that_change_nothing() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    tool = WEATHER | mark | {"type": "custom", "eager_input_streaming": True, "allowed_callers": ["direct"], "defer_loading": False}
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {}, "caller": {"type": "direct"}, "toolset_name": None} | mark
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a", "citations": None} | mark]},
        {"role": "assistant", "content": [used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"} | mark]},
    ]
    async with gateway_client() as client:
        response = await client.post("/v1/messages", json=HI | {"tools": [tool], "messages": turns})
    assert response.status_code == 200, response.text
