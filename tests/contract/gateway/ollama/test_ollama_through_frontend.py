"""Tools, thinking, schemas and long conversations in Ollama's shape, through the real gateway and frontend; the engine is fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import ollama
import pytest
from support.builders.frontend import frontend_bench, ids
from support.builders.tokenizer import IM_END_ID
from support.builders.tools import tool_model_dir
from support.drivers.ollama import WEATHER, joined
from support.fakes.engine import says
from support.fakes.gateway import until_connected
from support.waiting import until
from triptych_common.model.store import served_name
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

CALLS = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city":  "Zürich"}}\n</tool_call>\n'
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]


@asynccontextmanager
async def client_and_bench(text: str) -> AsyncIterator[tuple[ollama.AsyncClient, str, Any]]:
    """A client, the model's name, and the frontend, whose engine generates this text."""
    path = tool_model_dir()
    async with frontend_bench(says(ids(text), stop_token_id=IM_END_ID), model=path) as bench:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
        async with app.router.lifespan_context(app):
            await until_connected(app)
            await until(lambda: bool(app.state.gateway.pool.ready))
            client = ollama.AsyncClient("http://g", transport=httpx.ASGITransport(app))
            try:
                yield client, served_name(str(path)), bench
            finally:
                await client.close()


async def test_a_conversation_with_a_tool() -> None:
    async with client_and_bench(CALLS) as (client, model, bench):
        whole = await client.chat(model, ASKED, tools=[WEATHER])
        streamed = joined([line async for line in await client.chat(model, ASKED, tools=[WEATHER], stream=True)])
        # As the client's README has it.
        turns = [*ASKED, whole.message, {"role": "tool", "content": "sunny", "tool_name": "get_weather"}]
        following = await client.chat(model, turns, tools=[WEATHER])
        prompt = bench.engine.requests[-1].prompt_token_ids
    for answer in (whole, streamed):
        assert answer.message.content == "Let me look."
        assert answer.message.tool_calls is not None
        (call,) = answer.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_weather", {"city": "Zürich"})
        assert answer.prompt_eval_duration is not None
        assert answer.load_duration is not None
    assert following.prompt_eval_count == len(prompt)
    assert following.prompt_eval_count > (whole.prompt_eval_count or 0)


async def test_thinking_is_told_apart() -> None:
    async with client_and_bench("<think>Hm.</think>Hello") as (client, model, _):
        capabilities = (await client.show(model)).capabilities
        answer = await client.chat(model, ASKED)
        generated = await client.generate(model, "Weather?")
    assert "thinking" in (capabilities or [])
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "Hello")
    assert (generated.thinking, generated.response) == ("Hm.", "Hello")


@pytest.mark.parametrize("think", [True, "high"])
async def test_thinking_is_turned_on_in_the_template(think: Any) -> None:
    # The template opens the thinking, so that the model does not.
    async with client_and_bench("Hm.</think>Hello") as (client, model, bench):
        answer = await client.chat(model, ASKED, think=think)
        on = bench.engine.requests[-1].prompt_token_ids
        await client.chat(model, ASKED, think=False)
        off = bench.engine.requests[-1].prompt_token_ids
    assert (answer.message.thinking, answer.message.content) == ("Hm.", "Hello")
    assert list(on) != list(off)


async def test_a_schema_and_json_are_constraints() -> None:
    async with client_and_bench("x") as (client, model, bench):
        await client.chat(model, ASKED, format=WEATHER["function"]["parameters"])
        schema = bench.engine.requests[-1].constraint
        await client.generate(model, "Weather?", format="json", raw=True)
        json = bench.engine.requests[-1].constraint
    # The model may think before.
    assert "%json" in schema.grammar
    assert json.json_object


async def test_the_oldest_exchanges_of_a_long_conversation_are_left_out() -> None:
    async with client_and_bench("x") as (client, model, _):
        limit = (await client.ps()).models[0].context_length or 0
        long = {"role": "user", "content": "word " * (limit // 3)}
        turns = [long, {"role": "assistant", "content": "y"}] * 4 + [{"role": "user", "content": "Weather?"}]
        answer = await client.chat(model, turns)
        with pytest.raises(ollama.ResponseError) as caught:
            await client._request(
                ollama.ChatResponse,
                "POST",
                "/api/chat",
                json={"model": model, "messages": turns, "truncate": False, "stream": False},
            )
    assert 0 < (answer.prompt_eval_count or 0) < limit
    assert caught.value.status_code == 400
    assert "context" in caught.value.error


async def test_a_schema_that_cannot_be_compiled_is_named() -> None:
    async with client_and_bench("x") as (client, model, _):
        with pytest.raises(ollama.ResponseError, match=r"^format"):
            await client.chat(model, ASKED, format={"type": "object", "properties": {"a": {"type": "nonsense"}}})
