"""Tools, thinking and schemas in Anthropic's shape, through the real gateway and the real frontend; only the engine is a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from support.builders.frontend import frontend_bench, ids
from support.builders.tokenizer import IM_END_ID
from support.builders.tools import tool_model_dir
from support.drivers.anthropic import WEATHER
from support.fakes.engine import Script, says, thinks
from support.fakes.gateway import until_connected
from triptych_common.model.store import served_name
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

CALLS = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Zürich"}}\n</tool_call>\n'
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]


@asynccontextmanager
async def client_and_bench(text: str | Script) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, str, Any]]:
    """A client, the model's name, and the frontend, whose engine generates this text."""
    path = tool_model_dir()
    script = says(ids(text), stop_token_id=IM_END_ID) if isinstance(text, str) else text
    async with frontend_bench(script, model=path) as bench:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
        async with app.router.lifespan_context(app):
            await until_connected(app)
            http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
            async with anthropic.AsyncAnthropic(base_url="http://g", api_key="k", max_retries=0, http_client=http) as client:
                yield client, served_name(str(path)), bench


async def test_a_conversation_with_a_tool() -> None:
    async with client_and_bench(CALLS) as (client, model, _):
        asked: Any = {"model": model, "max_tokens": 100, "tools": [WEATHER]}
        whole = await client.messages.create(**asked, messages=ASKED)
        async with client.messages.stream(**asked, messages=ASKED) as stream:
            streamed = await stream.get_final_message()
        result = {"type": "tool_result", "tool_use_id": whole.content[-1].id, "content": "sunny"}  # type: ignore[union-attr]
        turns = [*ASKED, {"role": "assistant", "content": whole.content}, {"role": "user", "content": [result]}]
        await client.messages.create(**asked, messages=turns)
        counted = await client.messages.count_tokens(model=model, tools=[WEATHER], messages=turns)  # type: ignore[list-item]
    for message in (whole, streamed):
        text, call = message.content
        assert text.text == "Let me look."  # type: ignore[union-attr]
        assert (call.name, call.input) == ("get_weather", {"city": "Zürich"})  # type: ignore[union-attr]
        assert message.stop_reason == "tool_use"
    assert counted.input_tokens > whole.usage.input_tokens


async def test_a_forced_call_and_a_schema_are_constraints() -> None:
    async with client_and_bench(CALLS) as (client, model, bench):
        asked: Any = {"model": model, "max_tokens": 100, "messages": ASKED}
        await client.messages.create(**asked, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True})
        forced = bench.engine.requests[-1]
        await client.messages.create(**asked, output_config={"format": {"type": "json_schema", "schema": WEATHER["input_schema"]}})
        schema = bench.engine.requests[-1]
    assert forced.constraint.WhichOneof("kind") == "grammar"
    # The model may reason before.
    assert schema.constraint.WhichOneof("kind") == "grammar"
    assert "text: %json" in schema.constraint.grammar


async def test_thinking() -> None:
    async with client_and_bench("<think>Hm.</think>Hello") as (client, model, _):
        message = await client.messages.create(model=model, max_tokens=50, messages=ASKED)
    assert [block.type for block in message.content] == ["thinking", "text"]
    assert message.usage.output_tokens_details is not None
    assert message.usage.output_tokens_details.thinking_tokens > 0


async def test_thinking_that_takes_too_long_is_ended() -> None:
    script = thinks(says(ids("Hm, " * 500)), says(ids("Hello"), stop_token_id=IM_END_ID), ids("</think>"))
    async with client_and_bench(script) as (client, model, bench):
        asked: Any = {"model": model, "max_tokens": 2000, "messages": ASKED}
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        whole = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        http = client._client
        body = {"model": model, "messages": ASKED, "thinking_token_budget": 8, "logprobs": True}
        chat = (await http.post("/v1/chat/completions", json=body)).json()
        assert bench.frontend.num_live_requests == 0
    for message in (whole, streamed):
        thinking, text = message.content
        assert thinking.thinking.startswith("Hm, Hm, ")  # type: ignore[union-attr]
        assert (text.text, message.stop_reason) == ("Hello", "end_turn")  # type: ignore[union-attr]
        assert message.usage.output_tokens_details.thinking_tokens == 1024  # type: ignore[union-attr]
    (choice,) = chat["choices"]
    assert choice["message"]["content"] == "Hello"
    assert choice["message"]["reasoning_content"].startswith("Hm, ")
    assert chat["usage"]["completion_tokens_details"]["reasoning_tokens"] == 8
    assert len(choice["logprobs"]["content"]) == chat["usage"]["completion_tokens"]


async def test_a_schema_that_cannot_be_compiled_is_named() -> None:
    tool = WEATHER | {"input_schema": {"type": "object", "properties": {"a": {"type": "nonsense"}}}, "strict": True}
    async with client_and_bench("x") as (client, model, _):
        with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].input_schema"):
            await client.messages.create(model=model, max_tokens=50, messages=ASKED, tools=[tool])  # type: ignore[list-item]
