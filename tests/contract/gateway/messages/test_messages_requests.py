"""What the frontend gets for a conversation in Anthropic's shape."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest
from support.builders.media_files import image
from support.drivers.anthropic import HI, WEATHER, async_client
from support.fakes.frontend import MODEL, FakeFrontend
from triptych.v1 import common_pb2, generation_pb2

CALLED = {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris", "a": [1, 2.5, None]}}
ASKED = [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [CALLED]}]


def picture(content: bytes) -> dict[str, Any]:
    data = base64.b64encode(content).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


def result(content: Any = None, **fields: Any) -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": "t1", **fields}
    return block if content is None else block | {"content": content}


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
async def client(frontend: FakeFrontend) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with async_client(frontend) as client:
        yield client


async def sent(client: anthropic.AsyncAnthropic, frontend: FakeFrontend, *messages: Any, **body: Any) -> generation_pb2.ChatRequest:
    await client.messages.create(**(HI | {"messages": list(messages) or HI["messages"]} | body))
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    return frontend.request


def said(turn: generation_pb2.ChatMessage) -> tuple[str, list[str]]:
    return turn.role, [part.text for part in turn.content]


async def test_a_system_prompt_is_the_first_turn(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    blocks = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "Be kind."}]
    assert [said(turn) for turn in (await sent(client, frontend, system=blocks)).messages] == [
        ("system", ["Be brief.", "Be kind."]),
        ("user", ["Hi"]),
    ]
    assert said((await sent(client, frontend, system="Be brief.")).messages[0]) == ("system", ["Be brief."])


async def test_neighbours_of_one_role_are_one_turn(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    turns = [("user", "a"), ("user", [{"type": "text", "text": "b"}]), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    request = await sent(client, frontend, *({"role": role, "content": content} for role, content in turns))
    assert [said(turn) for turn in request.messages] == [("user", ["a", "b"]), ("assistant", ["c", "d"]), ("user", ["e"])]
    assert not request.HasField("continue_final_message")


async def test_an_answer_goes_on_with_the_last_message_of_the_assistant(
    client: anthropic.AsyncAnthropic, frontend: FakeFrontend
) -> None:
    request = await sent(client, frontend, *HI["messages"], {"role": "assistant", "content": "The answer is ("})
    assert request.continue_final_message


async def test_pictures(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    small, large = image(), image() + bytes(9000)
    at = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    content = [{"type": "text", "text": "See"}, picture(small), picture(large), at]
    request = await sent(client, frontend, {"role": "user", "content": content})
    _, first, second, third = (part.media for part in request.messages[0].content)
    assert (first.data, first.format, first.modality) == (small, "image/png", common_pb2.MODALITY_IMAGE)
    assert second.data == large
    assert third.url == "https://example.org/a.png"


async def test_a_large_picture_is_uploaded(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    large = image() + bytes(400_000)
    request = await sent(client, frontend, {"role": "user", "content": [picture(large)]})
    assert frontend.uploads[request.messages[0].content[0].media.upload_id] == large


async def test_tools(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    schema = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}}
    second = {"type": "custom", "name": "now", "input_schema": schema, "strict": True, "input_examples": [{"z": "UTC"}]}
    request = await sent(client, frontend, tools=[WEATHER, second])
    weather, now = request.tools
    assert (weather.name, weather.description, weather.HasField("strict")) == ("get_weather", "Weather of a city", False)
    assert weather.parameters_json_schema == json.dumps(WEATHER["input_schema"], separators=(",", ":"))
    assert now.strict
    assert list(json.loads(now.parameters_json_schema)["properties"]) == ["z", "a"]
    assert json.loads(now.parameters_json_schema)["examples"] == [{"z": "UTC"}]
    assert not request.HasField("tool_choice")


@pytest.mark.parametrize(
    ("choice", "mode", "names", "parallel"),
    [
        ({"type": "auto"}, "MODE_AUTO", [], None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "MODE_AUTO", [], False),
        ({"type": "any", "disable_parallel_tool_use": False}, "MODE_REQUIRED", [], True),
        ({"type": "tool", "name": "get_weather"}, "MODE_REQUIRED", ["get_weather"], None),
        ({"type": "none"}, "MODE_NONE", [], None),
    ],
)
async def test_tool_choice(
    client: anthropic.AsyncAnthropic,
    frontend: FakeFrontend,
    choice: dict[str, Any],
    mode: str,
    names: list[str],
    parallel: bool | None,
) -> None:
    request = await sent(client, frontend, tools=[WEATHER], tool_choice=choice)
    assert generation_pb2.ToolChoice.Mode.Name(request.tool_choice.mode) == mode
    assert list(request.tool_choice.allowed_names) == names
    assert (request.parallel_tool_calls if request.HasField("parallel_tool_calls") else None) == parallel


async def test_a_tool_result_is_linked_to_its_call(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    content = [result("sunny"), {"type": "text", "text": "And tomorrow?"}]
    request = await sent(client, frontend, *ASKED, {"role": "user", "content": content})
    _, called, answered, asked = request.messages
    (call,) = called.tool_calls
    assert (call.id, call.name, call.arguments) == ("t1", "get_weather", '{"city":"Paris","a":[1,2.5,null]}')
    assert said(called) == ("assistant", [])
    assert said(answered) == ("tool", ["sunny"])
    assert (answered.tool_call_id, answered.name) == ("t1", "get_weather")
    assert said(asked) == ("user", ["And tomorrow?"])


@pytest.mark.parametrize(
    ("block", "texts"),
    [
        (result(), []),
        (result(""), [""]),
        (result([]), []),
        (result("no", is_error=True), ["Error: no"]),
        (result(is_error=True), ["Error: "]),
        (result([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], is_error=False), ["a", "b"]),
    ],
)
async def test_results(client: anthropic.AsyncAnthropic, frontend: FakeFrontend, block: dict[str, Any], texts: list[str]) -> None:
    request = await sent(client, frontend, *ASKED, {"role": "user", "content": [block]})
    assert said(request.messages[2]) == ("tool", texts)


async def test_results_of_two_calls_are_two_turns_and_may_hold_pictures(
    client: anthropic.AsyncAnthropic, frontend: FakeFrontend
) -> None:
    calls = {"role": "assistant", "content": [CALLED, CALLED | {"id": "t2", "name": "look"}]}
    results = [result("a"), result([picture(image())]) | {"tool_use_id": "t2"}]
    request = await sent(client, frontend, *HI["messages"], calls, {"role": "user", "content": results})
    first, second = request.messages[2:]
    assert (first.tool_call_id, second.tool_call_id) == ("t1", "t2")
    assert second.content[0].media.data == image()


async def test_thinking(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "of another server"},
        {"type": "redacted_thinking", "data": "EmwKAhgB"},
        {"type": "text", "text": "Hello"},
    ]
    request = await sent(client, frontend, *HI["messages"], {"role": "assistant", "content": blocks}, *HI["messages"])
    assert request.messages[1].reasoning == "hm"
    assert said(request.messages[1]) == ("assistant", ["Hello"])


async def test_documents(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    plain = {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "All."},
        "title": "T",
        "context": "C",
    }
    blocks = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "One."}, picture(image())]}}
    string = {"type": "document", "source": {"type": "content", "content": "Two."}}
    request = await sent(client, frontend, {"role": "user", "content": [plain, blocks, string]})
    assert said(request.messages[0])[1] == ["Document: T\n\nC\n\nAll.", "One.", "", "Two."]
    assert request.messages[0].content[2].media.data == image()


@pytest.mark.parametrize(
    ("body", "effort", "max_tokens"),
    [
        ({}, None, None),
        ({"thinking": {"type": "adaptive"}}, None, None),
        ({"thinking": {"type": "enabled", "budget_tokens": 32}}, None, 32),
        ({"thinking": {"type": "disabled"}}, "none", None),
        ({"output_config": {"effort": "low"}}, "low", None),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "max", None),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}}, "none", None),
    ],
)
async def test_reasoning(
    client: anthropic.AsyncAnthropic, frontend: FakeFrontend, body: dict[str, Any], effort: str | None, max_tokens: int | None
) -> None:
    request = await sent(client, frontend, **body)
    assert request.HasField("reasoning") == (effort is not None or max_tokens is not None)
    assert (request.reasoning.effort if request.reasoning.HasField("effort") else None) == effort
    assert (request.reasoning.max_tokens if request.reasoning.HasField("max_tokens") else None) == max_tokens


async def test_only_what_the_client_set_is_sent(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    request = await sent(client, frontend)
    # max_tokens is mandatory, and its value often larger than the context.
    assert [field.name for field, _ in request.options.ListFields()] == ["sampling", "clamp_max_tokens"]
    assert [field.name for field, _ in request.options.sampling.ListFields()] == ["max_tokens"]


async def test_count_tokens_sends_the_whole_prompt(client: anthropic.AsyncAnthropic, frontend: FakeFrontend) -> None:
    turns: Any = [{"role": "user", "content": [{"type": "text", "text": "abc"}, picture(image())]}]
    counted = await client.messages.count_tokens(model=MODEL.name, messages=turns, system="de", tools=[WEATHER])  # type: ignore[list-item]
    assert counted.input_tokens == len("abcde")
    chat = frontend.preprocessed[-1].chat
    assert chat.messages[1].content[1].media.data == image()
    assert chat.tools[0].name == "get_weather"
