"""Anthropic's SDK against two servers. Arguments: URL of a scripted server, URL of a real one (both without /v1), model.

The scripted server answers with what the last text of the conversation tells it: {"mock": {...}}.
"""

import base64
import json
import struct
import sys
import zlib
from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import anthropic
from anthropic import Anthropic, beta_tool
from anthropic.lib.tools import ToolError
from pydantic import BaseModel

scripted, served, model = sys.argv[1:]
mock = Anthropic(base_url=scripted, api_key="none", max_retries=0)
real = Anthropic(base_url=served, api_key="none", max_retries=0)
ids = count()
#: The arguments of all calls of the tools.
called: list[Any] = []


class City(BaseModel):
    """A structured answer."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


def script(*calls: tuple[str, dict[str, Any]], **fields: Any) -> str:
    """A text that tells the scripted server what to answer: calls of tools, and other fields of a script."""
    made = [{"id": f"toolu_{next(ids)}", "name": name, "arguments": json.dumps(given)} for name, given in calls]
    return json.dumps({"mock": {"toolCalls": made, **fields}})


def asking(text: Any, **options: Any) -> dict[str, Any]:
    return {"model": model, "max_tokens": 100, "messages": [{"role": "user", "content": text}], **options}


def png(width: int, height: int) -> str:
    """A red picture, in base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xff\0\0" * width) * height)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")).decode()


PICTURE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(32, 32)}}


@beta_tool
def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: The name of the city.
    """
    called.append(city)
    return f"sunny in {city}"


@beta_tool
def take_picture(caption: str) -> Any:
    """A picture, and a text below it."""
    called.append(caption)
    return [PICTURE, {"type": "text", "text": caption}]


@beta_tool
def fail(reason: str) -> str:
    """A tool that fails."""
    raise ToolError(reason)


TOOLS = [get_weather, take_picture, fail]


def runs_tools() -> None:
    """What tools return drives the next turn: two calls at once, then a failure, then the answer."""
    called.clear()
    failing = script(("fail", {"reason": "no film"}), reasoning="Once more.")
    first = script(
        ("get_weather", {"city": "Zürich"}), ("take_picture", {"caption": failing}), reasoning="I must look.", text="I look."
    )
    runner = mock.beta.messages.tool_runner(**asking(first, tools=TOOLS, system="Use your tools.", max_tokens=1000))
    messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use", "tool_use", "end_turn"], messages
    assert [block.type for block in messages[0].content] == ["thinking", "text", "tool_use", "tool_use"]
    assert messages[0].content[0].signature
    assert called == ["Zürich", failing], called
    assert messages[-1].content[0].text == "Error: no film", messages[-1]
    sent = [message.usage.input_tokens for message in messages]
    assert sent == sorted(set(sent)), sent

    done = mock.beta.messages.tool_runner(**asking(script(("get_weather", {"city": "Oslo"})), tools=TOOLS)).until_done()
    assert done.content[0].text == "sunny in Oslo"


def runs_tools_while_it_streams() -> None:
    for eagerly in (False, True):
        called.clear()
        asked = asking(script(("get_weather", {"city": "Rome"}), ("get_weather", {"city": "Oslo"}), text="I look."), tools=TOOLS)
        runner = mock.beta.messages.tool_runner(**asked, stream=True, run_tools_eagerly=eagerly)
        finals = []
        for stream in runner:
            kinds = [event.type for event in stream]
            assert kinds[0] == "message_start"
            assert kinds[-1] == "message_stop"
            finals.append(stream.get_final_message())
        assert [final.stop_reason for final in finals] == ["tool_use", "end_turn"]
        assert called == ["Rome", "Oslo"], called
        assert finals[-1].content[0].text == "sunny in Oslo", finals[-1]


def streams() -> None:
    tools = [get_weather.to_dict()]
    text = script(("get_weather", {"city": "Zürich"}), reasoning="I must look.", text="It may be sunny.")
    with mock.messages.stream(**asking(text, tools=tools)) as stream:
        events = list(stream)
        final = stream.get_final_message()
    thinking = "".join(event.thinking for event in events if event.type == "thinking")
    told = "".join(event.text for event in events if event.type == "text")
    *_, last_json = (event for event in events if event.type == "input_json")
    assert (thinking, told) == ("I must look.", "It may be sunny."), (thinking, told)
    assert last_json.snapshot == {"city": "Zürich"}, last_json
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert (final.content[0].thinking, final.content[1].text, final.content[2].input) == (thinking, told, {"city": "Zürich"})
    assert final.stop_reason == "tool_use"
    blocks = [
        (event.type, event.index) for event in events if event.type.startswith("content_block_") and "delta" not in event.type
    ]
    assert blocks == [(f"content_block_{kind}", index) for index in range(3) for kind in ("start", "stop")], blocks
    with mock.messages.stream(**asking("One two three.", stop_sequences=["three"])) as stream:
        assert "".join(stream.text_stream) == stream.get_final_text() == "One two "
        assert (stream.get_final_message().stop_reason, stream.get_final_message().stop_sequence) == ("stop_sequence", "three")
    with mock.messages.stream(**asking("One two three.", max_tokens=2)) as stream:
        assert stream.get_final_message().stop_reason == "max_tokens"


def refusal(kind: type[anthropic.APIStatusError], ask: Callable[[], Any]) -> Any:
    """The error of this class that a request ends with."""
    try:
        ask()
    except kind as error:
        return error
    raise SystemExit(f"no {kind.__name__} came")


def is_refused() -> None:
    full = {"error": {"code": 8, "reason": "QUEUE_FULL", "retryAfterS": 2}}
    error = refusal(anthropic.RateLimitError, lambda: mock.messages.create(**asking(script(fault=full))))
    assert (error.type, error.response.headers["retry-after"]) == ("rate_limit_error", "2")
    # The client asks again by itself.
    again = asking(script(text="Here.", fault=full | {"numCalls": 1}), extra_headers={"x-request-id": "asked-twice"})
    assert mock.with_options(max_retries=1).messages.create(**again).content[0].text == "Here."

    pieces: list[str] = []

    def read() -> None:
        broken = script(text="One two three.", fault={"afterTokens": 2, "error": {"code": 13}})
        with mock.messages.stream(**asking(broken)) as stream:
            for piece in stream.text_stream:
                pieces.append(piece)

    assert refusal(anthropic.APIStatusError, read).type == "api_error"
    assert "".join(pieces) == "One two", pieces

    error = refusal(anthropic.BadRequestError, lambda: real.messages.create(**asking("word " * 10_000)))
    assert error.type == "invalid_request_error"
    assert "context" in error.body["error"]["message"], error.body
    error = refusal(anthropic.NotFoundError, lambda: real.messages.create(**asking("Hi") | {"model": "no-such-model"}))
    assert error.type == "not_found_error"


def is_forced() -> None:
    """A real model calls tools because it must, and keeps to a type."""
    weather: Any = get_weather.to_dict() | {"strict": True}
    weather["input_schema"]["properties"]["city"]["maxLength"] = 20
    other = {"name": "other", "description": "Another tool.", "input_schema": {"type": "object", "properties": {}}}
    greedy = {"extra_body": {"temperature": 0}}
    question = asking("What is the weather in Paris?", tools=[weather, other], **greedy)
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        options = question | {"tool_choice": {**choice, "disable_parallel_tool_use": True}}
        message = real.messages.create(**options)
        (block,) = message.content
        assert (message.stop_reason, block.type) == ("tool_use", "tool_use"), message
        assert choice["type"] == "any" or isinstance(block.input["city"], str), message
        with real.messages.stream(**options) as stream:
            assert stream.get_final_message().content[0].input == block.input
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "sunny"}, PICTURE]}]
    turns = [*question["messages"], {"role": "assistant", "content": message.content}, {"role": "user", "content": results}]
    following = question | {"messages": turns, "tool_choice": {"type": "none"}, "max_tokens": 16}
    answer = real.messages.create(**following)
    assert "tool_use" not in [block.type for block in answer.content], answer
    parsed = real.messages.parse(**asking("Name the capital of France.", **greedy), output_format=City)
    assert isinstance(parsed.parsed_output, City), parsed

    # What is counted is what is used.
    counted = {name: value for name, value in following.items() if name in ("model", "messages", "tools", "tool_choice")}
    num_tokens = real.messages.count_tokens(**counted).input_tokens
    assert num_tokens == answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0), (num_tokens, answer.usage)
    results[0]["content"].pop()
    assert real.messages.count_tokens(**counted).input_tokens < num_tokens - 10, "the picture has no tokens"


for flow in (runs_tools, runs_tools_while_it_streams, streams, is_refused, is_forced):
    flow()
print("ok")
