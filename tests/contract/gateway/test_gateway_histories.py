"""Conversations that began at another provider: unknown fields are left out and counted, what has a meaning is kept or refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client
from triptych_gateway.wire.schema import ignored_fields

FUNCTION = {"name": "f", "arguments": "{}"}
CHAT_HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": "", "id": "u1"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "reasoning_details": [{"type": "reasoning.text", "text": "Hm."}],
        "annotations": [{"type": "url_citation"}],
        "provider_specific_fields": {"a": 1},
        "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION | {"x": 1}, "index": 0, "extra_content": {}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}], "name": "f", "is_error": False},
    {"role": "user", "content": "Go on"},
]
MESSAGES_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "Ho", "citations": [{"type": "char_location"}]},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {}, "provider": "x"},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42", "duration_ms": 3}]},
]
OLLAMA_HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi", "id": "u1"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": {}, "x": 1}, "y": 2}]},
    {"role": "tool", "content": "42", "tool_name": "f", "took_ms": 3},
]
RESPONSES_HISTORY: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi", "x": 1}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "provider_data": {}},
    {"type": "function_call_output", "call_id": "c1", "output": "42", "took_ms": 3},
]


@pytest.mark.parametrize(
    ("path", "body", "num_ignored"),
    [
        ("/v1/chat/completions", {"messages": CHAT_HISTORY}, 9),
        ("/v1/messages", {"messages": MESSAGES_HISTORY, "max_tokens": 9}, 3),
        ("/api/chat", {"messages": OLLAMA_HISTORY}, 4),
        ("/v1/responses", {"input": RESPONSES_HISTORY}, 3),
    ],
)
async def test_unknown_fields_of_a_history_are_left_out_and_counted(path: str, body: dict[str, Any], num_ignored: int) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        before = ignored_fields["total"]
        response = await client.post(path, json={"model": MODEL.name, **body})
        assert response.status_code == 200, response.text
        assert ignored_fields["total"] - before == num_ignored
        metrics = (await client.get("/metrics")).text
    assert f"triptych_gateway_history_fields_ignored_total {float(ignored_fields['total'])}" in metrics
    (request,) = frontend.requests
    calls = [call for message in request.messages for call in message.tool_calls]
    assert [(call.id, call.name, call.arguments) for call in calls] == [("c1", "f", "{}")]
    assert "42" in [part.text for message in request.messages for part in message.content]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temprature": 1}, "temprature"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "content": "", "function_call": FUNCTION}]},
            "messages[0].function_call",
        ),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "", "audio": {"id": "a"}}]}, "messages[0].audio"),
        ("/v1/responses", {"input": "x", "colour": 1}, "colour"),
    ],
)
async def test_what_would_change_the_meaning_is_refused(path: str, body: dict[str, Any], param: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json={"model": MODEL.name, **body})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


LOOKS_LIKE_A_FILE = {"image_url": {"url": "data:image/png;base64," + "QUJD" * 2000}, "source": {"data": "REVG" * 2000}}


@pytest.mark.parametrize(
    ("path", "body", "read"),
    [
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [
                    {"role": "user", "content": "Hi"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": LOOKS_LIKE_A_FILE}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "42"}]},
                ],
            },
            lambda chat: chat.messages[1].tool_calls[0].arguments,
        ),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"default": LOOKS_LIKE_A_FILE}}}],
            },
            lambda chat: orjson.dumps(orjson.loads(chat.tools[0].parameters_json_schema)["default"]),
        ),
        (
            "/v1/responses",
            {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": {"default": LOOKS_LIKE_A_FILE}}]},
            lambda chat: orjson.dumps(orjson.loads(chat.tools[0].parameters_json_schema)["default"]),
        ),
    ],
)
async def test_what_looks_like_a_file_in_other_json_stays_as_it_is(path: str, body: dict[str, Any], read: Any) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json={"model": MODEL.name, **body})
    assert response.status_code == 200, response.text
    assert orjson.loads(read(frontend.request)) == LOOKS_LIKE_A_FILE
