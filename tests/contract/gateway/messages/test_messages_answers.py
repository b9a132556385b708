"""The official Anthropic client reads answers: whole, streamed, with tools and thinking."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel
from support.drivers.anthropic import HI, LENGTH, WEATHER, Delta, answers, async_client, call, sse, text, thought
from support.fakes.frontend import MODEL, FakeFrontend, Script
from support.fakes.gateway import gateway_client, gateway_server
from triptych.v1 import common_pb2

ASKS = HI | {"tools": [WEATHER]}


async def both(script: Script, **body: Any) -> tuple[anthropic.types.Message, anthropic.types.Message]:
    """The whole answer, and the one that the client makes of the stream."""
    frontend = FakeFrontend()
    frontend.script = script
    async with async_client(frontend) as client:
        whole = await client.messages.create(**(HI | body))
        async with client.messages.stream(**(HI | body)) as stream:
            streamed = await stream.get_final_message()
    return whole, streamed


def content(message: anthropic.types.Message) -> list[dict[str, Any]]:
    return [block.model_dump(exclude_none=True) for block in message.content]


async def test_text() -> None:
    usage = common_pb2.Usage(prompt_tokens=11, cached_tokens=8, completion_tokens=5, reasoning_tokens=2)
    for message in await both(Script(answers(text("Hel", "lo")).choices, usage)):
        assert message.id.startswith("msg_")
        assert (message.type, message.role, message.model) == ("message", "assistant", MODEL.name)
        assert content(message) == [{"type": "text", "text": "Hello"}]
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
        assert message.usage.input_tokens == 3
        assert message.usage.cache_read_input_tokens == 8
        assert message.usage.cache_creation_input_tokens == 0
        assert message.usage.output_tokens == 5
        assert message.usage.output_tokens_details is not None
        assert message.usage.output_tokens_details.thinking_tokens == 2


async def test_thinking_text_and_two_tools() -> None:
    script = answers(thought("h", "m"), text("Let me ", "see."), call(0, "get_weather", '{"city"', ':"Paris"}'), call(1, "now"))
    for message in await both(script, tools=[WEATHER]):
        thinking, *rest = content(message)
        assert thinking["thinking"] == "hm"
        assert thinking["signature"]
        assert rest == [
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": "call_0", "name": "get_weather", "input": {"city": "Paris"}},
            {"type": "tool_use", "id": "call_1", "name": "now", "input": {}},
        ]
        assert message.stop_reason == "tool_use"


async def test_a_stop_sequence_is_named() -> None:
    script = answers(text("one"), stop_text=" two")
    for message in await both(script, stop_sequences=[" two"]):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", " two")


async def test_a_stop_string_of_the_model_is_no_stop_sequence_of_the_client() -> None:
    for message in await both(answers(text("one"), stop_text="<end>"), stop_sequences=["x"]):
        assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


async def test_arguments_that_max_tokens_cut_are_as_far_as_they_go() -> None:
    script = answers(call(0, "get_weather", '{"city":"Paris","unit":"cel'), finish_reason=LENGTH)
    for message in await both(script, tools=[WEATHER], max_tokens=3):
        assert message.stop_reason == "max_tokens"
        assert content(message)[0]["input"] == {"city": "Paris"}


async def test_nothing_said() -> None:
    for message in await both(answers(finish_reason=LENGTH), max_tokens=0):
        assert (content(message), message.stop_reason) == ([], "max_tokens")


async def test_thinking_that_is_not_shown_comes_back_with_the_next_turn() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(thought("a ", "secret"), text("Hi"))
    thinking: Any = {"type": "adaptive", "display": "omitted"}
    async with async_client(frontend) as client:
        whole = await client.messages.create(**HI, thinking=thinking)
        async with client.messages.stream(**HI, thinking=thinking) as stream:
            streamed = await stream.get_final_message()
        for message in (whole, streamed):
            assert content(message)[0]["thinking"] == ""
            turns = [*HI["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": "And?"}]
            await client.messages.create(**(HI | {"messages": turns}))
            assert frontend.request.messages[1].reasoning == "a secret"  # type: ignore[union-attr]


async def test_events_of_the_stream_helper() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(thought("hm"), text("a", "b"), call(0, "get_weather", '{"city":', '"P"}'))
    async with async_client(frontend) as client:
        async with client.messages.stream(**ASKS) as stream:
            kinds = [event.type async for event in stream]
        async with client.messages.stream(**HI) as stream:
            texts = [piece async for piece in stream.text_stream]
    assert texts == ["a", "b"]
    assert [kind for kind in kinds if kind in ("thinking", "signature", "text", "input_json")] == [
        "thinking",
        "signature",
        "text",
        "text",
        "input_json",
        "input_json",
    ]


async def test_the_bytes_of_a_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = answers([Delta(text="Hi", prompt_tokens=7)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/messages", json=HI | {"stream": True}, headers={"x-request-id": "r1"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["request-id"] == "r1"
    usage = '"cache_creation_input_tokens":0,"cache_read_input_tokens":%d,"output_tokens":%d'
    rest = ',"output_tokens_details":{"thinking_tokens":0},"service_tier":"standard"}'
    assert [(name, data.decode()) for name, data in sse(response.content)] == [
        (
            "message_start",
            '{"type":"message_start","message":{"id":"msg_r1","type":"message","role":"assistant","model":"fake/model","content":[],'
            '"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":7,' + usage % (0, 0) + rest + "}}",
        ),
        ("ping", '{"type":"ping"}'),
        ("content_block_start", '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'),
        ("content_block_delta", '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}'),
        ("content_block_stop", '{"type":"content_block_stop","index":0}'),
        (
            "message_delta",
            '{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":5,'
            + usage % (2, 3)
            + rest
            + "}",
        ),
        ("message_stop", '{"type":"message_stop"}'),
    ]


class City(BaseModel):
    """A parsed answer."""

    name: str
    population: int


async def test_parsed_answers() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(text('{"name":"Paris",', '"population":2}'))
    async with async_client(frontend) as client:
        parsed = await client.messages.parse(**HI, output_format=City)
        async with client.messages.stream(**HI, output_format=City) as stream:
            streamed = await stream.get_final_message()
    assert parsed.parsed_output == streamed.parsed_output == City(name="Paris", population=2)
    assert '"population"' in frontend.request.options.constraint.json_schema


async def test_the_client_runs_tools_by_itself() -> None:
    frontend = FakeFrontend()

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        return f"sunny in {city}"

    def script(request: Any) -> Script:
        is_first = len(request.messages) == 1
        return answers(call(0, "get_weather", '{"city":"Paris"}')) if is_first else answers(text("It is sunny."))

    frontend.script = script
    async with async_client(frontend) as client:
        message = await client.beta.messages.tool_runner(**HI, tools=[get_weather]).until_done()
    assert message.content[0].text == "It is sunny."  # type: ignore[union-attr]
    _, called, result = frontend.request.messages  # type: ignore[union-attr]
    assert (called.tool_calls[0].id, called.tool_calls[0].arguments) == ("call_0", '{"city":"Paris"}')
    assert (result.role, result.tool_call_id, result.content[0].text) == ("tool", "call_0", "sunny in Paris")


@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_the_synchronous_client() -> None:
    frontend = FakeFrontend()
    async with gateway_server(frontend) as (host, port):

        def ask() -> tuple[str, str, int, list[str]]:
            with anthropic.Anthropic(base_url=f"http://{host}:{port}", api_key="key", max_retries=0) as client:
                whole = client.messages.create(**HI)
                with client.messages.stream(**HI) as stream:
                    streamed = stream.get_final_text()
                raw = [event.type for event in client.messages.create(**HI, stream=True)]
                count = client.messages.count_tokens(model=MODEL.name, messages=HI["messages"])
                return whole.content[0].text, streamed, count.input_tokens, raw  # type: ignore[union-attr]

        whole, streamed, count, raw = await asyncio.to_thread(ask)
    assert (whole, streamed, count) == ("Hello", "Hello", 2)
    assert raw[0] == "message_start"
    assert raw[-1] == "message_stop"
