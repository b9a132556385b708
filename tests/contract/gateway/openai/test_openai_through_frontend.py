"""OpenAI's own client, unmodified, through the real gateway and the real frontend; only the engine is a fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from support.builders.frontend import TOKENIZER, frontend_bench, ids
from support.builders.tokenizer import IM_END_ID
from support.builders.tools import tool_model_dir
from support.fakes.engine import says
from support.fakes.gateway import until_connected
from triptych_common.model.store import served_name
from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings


class Weather(BaseModel):
    """The arguments of a tool."""

    city: str


class Report(BaseModel):
    """A structured answer."""

    sunny: bool


CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Zürich"}}\n</tool_call>'
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]
TOOL = openai.pydantic_function_tool(Weather)
FLAT_TOOL: Any = {"type": "function", **TOOL["function"]}
REPORT: Any = {"type": "json_schema", "name": "Report", "schema": {**Report.model_json_schema(), "additionalProperties": False}}


@asynccontextmanager
async def client_and_bench(text: str) -> AsyncIterator[tuple[openai.AsyncOpenAI, str, Any]]:
    """A client, the model's name, and the frontend, whose engine generates this text."""
    path = tool_model_dir()
    async with frontend_bench(says(ids(text), stop_token_id=IM_END_ID), model=path) as bench:
        app = create_app(GatewaySettings(frontend_addresses=(f"127.0.0.1:{bench.frontend.server.port}",)))
        async with app.router.lifespan_context(app):
            await until_connected(app)
            http = httpx.AsyncClient(transport=httpx.ASGITransport(app))
            async with openai.AsyncOpenAI(base_url="http://g/v1", api_key="k", max_retries=0, http_client=http) as client:
                yield client, served_name(str(path)), bench


async def test_parse_takes_tools_and_a_format_together() -> None:
    async with client_and_bench(CALL) as (client, model, bench):
        called = await client.chat.completions.parse(model=model, messages=ASKED, tools=[TOOL], response_format=Report)
        grammar = bench.engine.requests[-1].constraint.grammar
    (choice,) = called.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.parsed is None
    (call,) = choice.message.tool_calls or ()
    assert call.function.parsed_arguments == Weather(city="Zürich")
    assert "text: %json" in grammar
    assert "call_0" in grammar
    async with client_and_bench('{"sunny": true}') as (client, model, _):
        answered = await client.chat.completions.parse(model=model, messages=ASKED, tools=[TOOL], response_format=Report)
    assert answered.choices[0].finish_reason == "stop"
    assert answered.choices[0].message.parsed == Report(sunny=True)
    assert not answered.choices[0].message.tool_calls


async def test_responses_take_a_required_tool_and_a_format_together() -> None:
    async with client_and_bench(CALL) as (client, model, _):
        response = await client.responses.create(
            model=model, input="Weather?", tools=[FLAT_TOOL], tool_choice="required", text={"format": REPORT}
        )
        parsed = await client.responses.parse(model=model, input="Weather?", tools=[FLAT_TOOL], text_format=Report)
    for one in (response, parsed):
        (call,) = one.output
        assert (call.type, call.name, call.status) == ("function_call", "Weather", "completed")  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["instructions", "developer", "system"])
async def test_instructions_reach_the_model(field: str) -> None:
    async with client_and_bench("Oui.") as (client, model, bench):
        if field == "instructions":
            turns: Any = [{"role": "developer", "content": "Answer in French."}, *ASKED]
            await client.responses.create(model=model, instructions="Be brief.", input=turns)
        else:
            turns = [{"role": field, "content": "Answer in French."}, *ASKED]
            await client.chat.completions.create(model=model, messages=turns)
        prompt = TOKENIZER.decode(list(bench.engine.requests[-1].prompt_token_ids), skip_special_tokens=False)
    assert "Answer in French." in prompt
    assert ("Be brief." in prompt) == (field == "instructions")


async def test_a_named_tool_is_called_once() -> None:
    async with client_and_bench(f"{CALL}\n{CALL}") as (client, model, _):
        choice: Any = {"type": "function", "function": {"name": "Weather"}}
        whole = await client.chat.completions.create(model=model, messages=ASKED, tools=[TOOL], tool_choice=choice)
        stream = await client.chat.completions.create(model=model, messages=ASKED, tools=[TOOL], tool_choice=choice, stream=True)
        pieces = [chunk.choices[0] async for chunk in stream if chunk.choices]
    assert len(whole.choices[0].message.tool_calls or ()) == 1
    assert whole.choices[0].finish_reason == pieces[-1].finish_reason == "tool_calls"
    assert {call.index for piece in pieces for call in piece.delta.tool_calls or ()} == {0}


async def test_a_result_without_its_call_is_refused_by_its_id() -> None:
    async with client_and_bench("x") as (client, model, _):
        turns: Any = [*ASKED, {"role": "tool", "tool_call_id": "call_9", "content": "42"}]
        with pytest.raises(openai.BadRequestError, match="call_9") as caught:
            await client.chat.completions.create(model=model, messages=turns)
        assert caught.value.param == "messages[1].tool_call_id"
        items: Any = [{"type": "function_call_output", "call_id": "call_9", "output": "42"}]
        with pytest.raises(openai.BadRequestError, match="call_9") as caught:
            await client.responses.create(model=model, input=items)
        assert caught.value.param == "input[0].call_id"
