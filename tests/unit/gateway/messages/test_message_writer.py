"""The official client's accumulator reads the events of every sequence, and gets what the whole answer says."""

from __future__ import annotations

from itertools import product
from typing import Any

import anthropic
import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.drivers.anthropic import LENGTH, STOP, Delta, call, sse, text, thought
from triptych.v1 import common_pb2
from triptych.v1.generation_pb2 import ToolCallDelta
from triptych_gateway.apis.messages.events import MessageWriter
from triptych_gateway.apis.messages.schema import MessagesRequest
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.tools import arguments_object

EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
COST = Cost(usage=common_pb2.Usage(prompt_tokens=9, cached_tokens=4, completion_tokens=5))


def a_writer(*, max_tokens: int = 5, shows_thinking: bool = True, **fields: Any) -> MessageWriter:
    """The writer of an answer to a request with these fields."""
    thinking = {"type": "adaptive", "display": "summarized" if shows_thinking else "omitted"}
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens, "thinking": thinking}
    return MessageWriter("r1", MessagesRequest.model_validate(body | fields))


def streamed(deltas: list[Delta], **options: Any) -> tuple[list[dict[str, Any]], anthropic.types.Message]:
    """The events of an answer, and the message that the client makes of them."""
    writer = a_writer(**options)
    body = writer.opening(1) + b"".join(writer.delta(0, delta) for delta in deltas) + writer.closing(COST)
    events = [orjson.loads(data) for name, data in sse(body) if name != "ping"]
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events:
        parsed = EVENTS.validate_python(event)
        snapshot = accumulate_event(event=parsed, current_snapshot=snapshot, json_bufs=buffers)
    return events, snapshot


def whole(deltas: list[Delta], **options: Any) -> dict[str, Any]:
    choice = Choice()
    for delta in deltas:
        choice.add(delta)
    answer: dict[str, Any] = orjson.loads(a_writer(**options).whole([choice], COST))
    anthropic.types.Message.model_validate(answer)
    return answer


def check_blocks(events: list[dict[str, Any]]) -> None:
    """Blocks are numbered from 0, open and close in order, and never overlap."""
    open_block, num_blocks = None, 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert open_block is None
            open_block = event["index"]
            assert open_block == num_blocks
            num_blocks += 1
        else:
            assert event["index"] == open_block
            if event["type"] == "content_block_stop":
                open_block = None
    assert open_block is None
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]


def steps(kinds: tuple[str, ...]) -> list[Delta]:
    deltas, num_calls = [], 0
    for kind in kinds:
        if kind == "tool":
            deltas += call(num_calls, "f", '{"a":', "[1", "]}")
            num_calls += 1
        else:
            deltas += thought("h", "m") if kind == "thinking" else text("a", "", "b")
    return [*deltas, Delta(finish_reason=common_pb2.FINISH_REASON_TOOL_CALLS if num_calls else STOP)]


@pytest.mark.parametrize("shows_thinking", [True, False])
@pytest.mark.parametrize("kinds", [kinds for n in range(5) for kinds in product(("text", "thinking", "tool"), repeat=n)])
def test_every_sequence_of_kinds(kinds: tuple[str, ...], shows_thinking: bool) -> None:
    deltas = steps(kinds)
    events, message = streamed(deltas, shows_thinking=shows_thinking)
    check_blocks(events)
    answer = whole(deltas, shows_thinking=shows_thinking)
    assert message.to_dict(exclude_unset=False, exclude_none=True) == {
        name: value for name, value in answer.items() if value is not None
    }
    assert answer["stop_reason"] == ("tool_use" if "tool" in kinds else "end_turn")
    # Neighbours of one kind are one block, but each call is its own.
    merged = [kind for index, kind in enumerate(kinds) if kind == "tool" or index == 0 or kinds[index - 1] != kind]
    names = {"tool": "tool_use"}
    assert [block["type"] for block in answer["content"]] == [names.get(kind, kind) for kind in merged]


@given(
    pieces=st.lists(st.text(st.characters(codec="utf-8"), max_size=6), min_size=1, max_size=6),
    model=st.text(st.characters(codec="utf-8"), min_size=1),
)
def test_any_text_comes_through(pieces: list[str], model: str) -> None:
    writer = a_writer(model=model)
    body = writer.opening(1) + b"".join(writer.delta(0, delta) for delta in text(*pieces))
    events = [orjson.loads(data) for _, data in sse(body)]
    assert events[0]["message"]["model"] == model
    assert "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta") == "".join(pieces)


def test_a_delta_with_nothing_new_is_no_event() -> None:
    writer = a_writer()
    assert writer.delta(0, Delta(prompt_tokens=3)).startswith(b"event: message_start")
    assert writer.delta(0, Delta()) == b""
    assert writer.delta(0, Delta(text="")) == b""
    assert writer.delta(0, Delta(reasoning="")) == b""


def test_the_last_delta_may_have_text() -> None:
    deltas = [Delta(text="a"), Delta(text="b", finish_reason=LENGTH)]
    events, message = streamed(deltas)
    check_blocks(events)
    assert message.content[0].text == "ab"  # type: ignore[union-attr]
    assert message.stop_reason == whole(deltas)["stop_reason"] == "max_tokens"


def test_an_answer_that_fills_the_context_says_so() -> None:
    deltas = [Delta(text="a"), Delta(finish_reason=LENGTH)]
    choice = Choice()
    for delta in deltas:
        choice.add(delta)
    writer = a_writer(max_tokens=6)
    assert orjson.loads(writer.whole([choice], COST))["stop_reason"] == "model_context_window_exceeded"


def test_a_call_that_cannot_be_made_is_not_waited_for() -> None:
    cut = Delta(tool_call=ToolCallDelta(index=0, incomplete=True))
    deltas = [*call(0, "f", '{"a":'), cut, Delta(finish_reason=STOP)]
    events, message = streamed(deltas)
    check_blocks(events)
    assert message.stop_reason == whole(deltas)["stop_reason"] == "end_turn"


@pytest.mark.parametrize("end", range(len('{"city":"Paris","days":[1,{"a":2.5}],"ok":true}') + 1))
def test_cut_arguments_are_read_as_the_client_reads_them(end: int) -> None:
    arguments = '{"city":"Paris","days":[1,{"a":2.5}],"ok":true}'[:end]
    deltas = [*call(0, "f", arguments), Delta(finish_reason=LENGTH)]
    _, message = streamed(deltas)
    assert message.content[0].input == whole(deltas)["content"][0]["input"]  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", ["", "[1]", '"a"', "no JSON", "{a: 1}", "null"])
def test_arguments_that_are_no_object_are_empty(arguments: str) -> None:
    assert orjson.dumps(arguments_object(arguments)) == b"{}"


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ('{"a":  123456789012345678901234567890, "b": 1.0}', '{"a":  123456789012345678901234567890, "b": 1.0}'),
        ('{"a": NaN}', '{"a":null}'),
        ('{"a": 1, "b": 123456789012345678901234567890, "c', "{}"),
        ("[" * 300, "{}"),
        ('{"a":' * 300, "{}"),
    ],
)
def test_arguments_are_not_written_anew(arguments: str, written: str) -> None:
    assert orjson.dumps(arguments_object(arguments)) == written.encode()


def test_the_events_of_thinking_and_a_tool() -> None:
    writer = a_writer()
    deltas = [*thought("hm"), *call(0, "f", '{"a":', "1}"), Delta(finish_reason=STOP)]
    writer.delta(0, Delta())
    body = b"".join(writer.delta(0, delta) for delta in deltas)
    assert [data.decode() for _, data in sse(body)] == [
        '{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
        '{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"triptych1."}}',
        '{"type":"content_block_stop","index":0}',
        '{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"call_0","name":"f","input":{}}}',
        '{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":"}}',
        '{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"1}"}}',
        '{"type":"content_block_stop","index":1}',
    ]
