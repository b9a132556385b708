"""Tools and reasoning through the official openai client: its accumulators are the specification of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import orjson
import pytest
from pydantic import BaseModel
from support.fakes.frontend import MODEL, FakeFrontend, Script
from support.fakes.gateway import CHAT, events_of, gateway_client
from support.sdk import openai_client, sync_openai_client
from support.tool_scripts import calls_tools, end, tool_call
from triptych.errors import UnimplementedError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.chat.schema import ChatCompletion

MESSAGES: Any = CHAT["messages"]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "description": "Now", "parameters": PARAMETERS, "strict": True}}]
NAMED = {"type": "function", "function": {"name": "weather"}}
CALLS = [("call_1", "weather", '{"city": "Paris"}'), ("call_2", "weather", '{"city": "Rome"}')]
ASK: dict[str, Any] = {"model": MODEL.name, "messages": MESSAGES, "tools": TOOLS}


class Weather(BaseModel):
    """Arguments of the tool, as the client parses them."""

    city: str


def calls_of(message: Any) -> list[tuple[str, str, str]]:
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]


async def test_whole_answer_with_tool_calls_only() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools()
    async with openai_client(frontend) as client:
        answer = await client.chat.completions.create(**ASK)
    (choice,) = answer.choices
    assert (choice.message.content, calls_of(choice.message), choice.finish_reason) == (None, CALLS, "tool_calls")
    (tool,) = frontend.request.tools
    assert (tool.name, tool.description, tool.strict) == ("weather", "Now", True)
    assert tool.parameters_json_schema == orjson.dumps(PARAMETERS).decode()
    assert not frontend.request.HasField("tool_choice")


async def test_streamed_tool_calls_are_accumulated_by_the_client() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools(text="Let me look.", reasoning=["Which ", "city?"])
    async with openai_client(frontend) as client, client.chat.completions.stream(**ASK) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    (choice,) = final.choices
    assert (choice.message.content, calls_of(choice.message), choice.finish_reason) == ("Let me look.", CALLS, "tool_calls")
    assert choice.message.model_extra is not None
    assert choice.message.model_extra["reasoning_content"] == choice.message.model_extra["reasoning"] == "Which city?"
    done = [event.arguments for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done == [arguments for _, _, arguments in CALLS]
    pieces = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta" and event.index == 0]
    assert "".join(pieces) == CALLS[0][2]
    assert len(pieces) > 2


async def test_parsed_tool_arguments_and_the_next_turn() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools(text="One moment.", reasoning=["Hm."])
    async with openai_client(frontend) as client:
        tool = openai.pydantic_function_tool(Weather, name="weather")
        first = await client.chat.completions.parse(model=MODEL.name, messages=MESSAGES, tools=[tool])
        message = first.choices[0].message
        assert message.tool_calls is not None
        parsed = message.tool_calls[0].function.parsed_arguments
        assert isinstance(parsed, Weather)
        assert parsed.city == "Paris"
        # The message as the SDK holds it, and both results: one of them empty.
        results: list[Any] = [{"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "Sun"}]}]
        results.append({"role": "tool", "tool_call_id": "call_2", "content": ""})
        await client.chat.completions.create(model=MODEL.name, messages=[*MESSAGES, message, *results])
    _, assistant, sun, empty = frontend.request.messages
    assert [(call.id, call.name, call.arguments) for call in assistant.tool_calls] == CALLS
    assert (assistant.content[0].text, assistant.reasoning) == ("One moment.", "Hm.")
    assert (sun.tool_call_id, sun.content[0].text) == ("call_1", "Sun")
    assert (empty.tool_call_id, [part.text for part in empty.content]) == ("call_2", [""])


async def test_streamed_message_is_taken_back() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools(text="One moment.")
    async with openai_client(frontend) as client:
        async with client.chat.completions.stream(**ASK) as stream:
            final = await stream.get_final_completion()
        message: Any = final.choices[0].message
        for sent in (message, message.model_dump()):
            await client.chat.completions.create(model=MODEL.name, messages=[*MESSAGES, sent])
            assert [(call.id, call.name, call.arguments) for call in frontend.request.messages[1].tool_calls] == CALLS


async def test_synchronous_client() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools()

    def ask(client: openai.OpenAI) -> tuple[Any, Any]:
        whole = client.chat.completions.create(**ASK)
        with client.chat.completions.stream(**ASK) as stream:
            return whole, stream.get_final_completion()

    async with sync_openai_client(frontend) as client:
        for answer in await asyncio.to_thread(ask, client):
            assert calls_of(answer.choices[0].message) == CALLS


@pytest.mark.parametrize("stream", [False, True])
async def test_arguments_cut_by_the_limit_are_sent_as_they_are(stream: bool) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([[*tool_call(0, ['{"ci']), end(common_pb2.FINISH_REASON_LENGTH)]])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=ASK | {"stream": stream})
    if stream:
        last = orjson.loads(events_of(response.content)[-2])
        assert last["choices"][0]["finish_reason"] == "length"
        return
    choice = response.json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["arguments"]) == ("length", '{"ci')


async def test_only_the_choice_that_called_has_tool_calls() -> None:
    frontend = FakeFrontend()
    text = [generation_pb2.ChoiceDelta(text="No."), end()]
    frontend.script = Script([text, [*tool_call(0, ["{}"], index=1), end(common_pb2.FINISH_REASON_TOOL_CALLS, index=1)]])
    async with openai_client(frontend) as client:
        whole = await client.chat.completions.create(**ASK, n=2)
        async with client.chat.completions.stream(**ASK, n=2) as stream:
            streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        assert [choice.finish_reason for choice in answer.choices] == ["stop", "tool_calls"]
        assert [bool(choice.message.tool_calls) for choice in answer.choices] == [False, True]


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("auto", "MODE_AUTO", []),
        ("none", "MODE_NONE", []),
        ("required", "MODE_REQUIRED", []),
        (NAMED, "MODE_REQUIRED", ["weather"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}, "MODE_AUTO", ["weather"]),
    ],
)
async def test_tool_choice(choice: Any, mode: str, names: list[str]) -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        await client.chat.completions.create(**ASK, tool_choice=choice)
    sent = frontend.request.tool_choice
    assert (generation_pb2.ToolChoice.Mode.Name(sent.mode), list(sent.allowed_names)) == (mode, names)


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]", "custom tools are not supported"),
        ({"tools": [*TOOLS, *TOOLS]}, "tools", "two tools have the name 'weather'"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "required"),
        ({"tools": [{"type": "function", "function": {"name": "x", "strickt": True}}]}, "tools[0].function.strickt", "unknown"),
        ({"tool_choice": "required", "tools": []}, "tool_choice", "only allowed with tools"),
        ({"tool_choice": "sometimes"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}}, "tool_choice", "custom tools are not supported"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name", "no tool has the name 'x'"),
        (
            {"messages": [*MESSAGES, {"role": "user", "content": "", "tool_calls": []}, {"role": "tool", "content": "x"}]},
            "messages[2]",
            "tool_call_id is required with the role tool",
        ),
        (
            {"messages": [{"role": "user", "content": "x", "reasoning": "x"}]},
            "messages[0]",
            "reasoning is only allowed with the role assistant",
        ),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call", "send tool_calls"),
    ],
)
async def test_refused_by_name(fields: dict[str, Any], param: str, says: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=ASK | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert says in error["message"]


async def test_an_error_of_the_frontend_names_the_clients_field() -> None:
    frontend = FakeFrontend()
    field = "tools[0].parameters_json_schema"
    frontend.script = Script(calls_tools().choices, error=UnimplementedError(f"{field}: no", field=field))
    async with openai_client(frontend) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**ASK)
    assert caught.value.param == "tools[0].function.parameters"
    assert "tools[0].function.parameters: no" in caught.value.message


async def test_reasoning_is_told_apart_and_counted() -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools(reasoning=["So."])
    assert isinstance(frontend.script, Script)
    frontend.script.usage = common_pb2.Usage(prompt_tokens=3, completion_tokens=9, reasoning_tokens=4)
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=ASK)
    answer = ChatCompletion.model_validate_json(response.content, strict=True, extra="forbid")
    assert answer.choices[0].message.reasoning_content == answer.choices[0].message.reasoning == "So."
    assert answer.usage.completion_tokens_details.reasoning_tokens == 4


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_is_left_out_on_request(stream: bool) -> None:
    frontend = FakeFrontend()
    frontend.script = calls_tools(reasoning=["So."])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=ASK | {"stream": stream, "include_reasoning": False})
    assert b"weather" in response.content
    assert b"reasoning_content" not in response.content
    assert b"So." not in response.content
