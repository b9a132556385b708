"""The events of /v1/responses: their order, indices and numbers, and what the official client makes of them."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai import omit
from openai._models import construct_type
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent
from triptych.errors import InternalError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.responses.events import ResponseWriter
from triptych_gateway.apis.responses.opaque import unseal
from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError
from triptych_gateway.wire.sse import data_of, split_events

Delta = generation_pb2.ChoiceDelta
STOP, LENGTH = common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH
COST = Cost(common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2, reasoning_tokens=1))
ID = "resp_" + "0123456789abcdef" * 2


def call(index: int, arguments: str, **first: str) -> Delta:
    return Delta(tool_call=generation_pb2.ToolCallDelta(index=index, arguments=arguments, **first))


#: Reasoning, a message, two calls.
EVERYTHING = [
    Delta(reasoning="Think"),
    Delta(reasoning="ing."),
    Delta(text="I'll"),
    Delta(text=" look.\n\n"),
    call(0, "", id="call_1", name="weather"),
    call(0, '{"city":'),
    call(0, '"Oslo"}'),
    call(1, '{"city":"Rome"}', id="call_2", name="weather"),
    Delta(finish_reason=STOP),
]


def a_writer(**fields: Any) -> ResponseWriter:
    body = ResponseRequest.model_validate({"model": "m", "input": "Hi", **fields})
    return ResponseWriter(body, ID, is_stored=True)


def written(writer: ResponseWriter, deltas: list[Delta]) -> list[dict[str, Any]]:
    """The events, each checked to have its name and its number."""
    stream = writer.opening(1) + b"".join(writer.delta(0, delta) for delta in deltas) + writer.closing(COST)
    *events, done = split_events(stream)
    assert done == b"data: [DONE]\n\n"
    return checked(events)


def checked(events: list[bytes]) -> list[dict[str, Any]]:
    parsed = [orjson.loads(data_of(event)) for event in events]
    assert [event.split(b"\n")[0] for event in events] == [b"event: " + one["type"].encode() for one in parsed]
    assert [one["sequence_number"] for one in parsed] == list(range(len(parsed)))
    return parsed


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def accumulated(events: list[dict[str, Any]]) -> Any:
    """The response that the official client has at the end of a stream. It raises for a wrong order or index."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=[], text_format=omit)
    for event in events:
        state.handle_event(construct_type(type_=ResponseStreamEvent, value=event))  # type: ignore[arg-type]
    return state._completed_response


def test_text_alone() -> None:
    events = written(a_writer(), [Delta(text="Hel"), Delta(text="lo", finish_reason=STOP)])
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert accumulated(events).output_text == "Hello"
    usage = events[-1]["response"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 3, 10)
    assert usage["input_tokens_details"]["cached_tokens"] == 2
    assert usage["output_tokens_details"]["reasoning_tokens"] == 1


def test_reasoning_a_message_and_calls() -> None:
    events = written(a_writer(), EVERYTHING)
    assert kinds(events) == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    placed = [event for event in events if "output_index" in event]
    indices = [event["output_index"] for event in placed]
    assert indices == sorted(indices)
    assert set(indices) == {0, 1, 2, 3}
    output = events[-1]["response"]["output"]
    for event in placed:
        if "item_id" in event:
            assert event["item_id"] == output[event["output_index"]]["id"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert output[1]["phase"] == "commentary"
    assert accumulated(events).output[2].arguments == '{"city":"Oslo"}'
    assert [item["call_id"] for item in output[2:]] == ["call_1", "call_2"]


def test_a_summary_takes_the_place_of_the_content() -> None:
    events = written(a_writer(reasoning={"summary": "auto"}), [Delta(reasoning="Hm"), Delta(text="A", finish_reason=STOP)])
    assert kinds(events)[2:8] == [
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
    ]
    assert all(event["summary_index"] == 0 for event in events[3:7])
    item = accumulated(events).output[0]
    assert item.summary[0].text == "Hm"
    assert item.content == []


def test_opaque_reasoning_can_be_read_back() -> None:
    events = written(a_writer(include=["reasoning.encrypted_content"]), [Delta(reasoning="Ünd"), Delta(finish_reason=STOP)])
    sealed = events[-1]["response"]["output"][0]["encrypted_content"]
    assert "nd" not in sealed
    assert unseal(sealed, "x") == "Ünd"


def test_log_probabilities_belong_to_the_text() -> None:
    entry = generation_pb2.TokenLogprob(token="A", utf8=b"A", logprob=-0.5)
    entry.top.add(token="B", utf8=b"B", logprob=float("-inf"))
    deltas = [Delta(reasoning="Hm", logprobs=[entry, entry]), Delta(text="A", logprobs=[entry], finish_reason=STOP)]
    events = written(a_writer(top_logprobs=1), deltas)
    expected = [
        {
            "token": "A",
            "logprob": -0.5,
            "bytes": [65],
            "top_logprobs": [{"token": "B", "logprob": -9999.0, "bytes": [66]}],
        }
    ]
    [delta] = [event for event in events if event["type"] == "response.output_text.delta"]
    assert delta["logprobs"] == expected
    assert events[-1]["response"]["output"][1]["content"][0]["logprobs"] == expected


@pytest.mark.parametrize(
    ("deltas", "kind"),
    [
        ([Delta(text="cut")], "message"),
        ([call(0, '{"a', id="c", name="f")], "function_call"),
        ([Delta(reasoning="Hm")], "reasoning"),
    ],
)
def test_a_cut_response_is_incomplete(deltas: list[Delta], kind: str) -> None:
    events = written(a_writer(max_output_tokens=1), [*deltas, Delta(finish_reason=LENGTH)])
    assert events[-1]["type"] == "response.incomplete"
    response = events[-1]["response"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [(item["type"], item["status"]) for item in response["output"]] == [(kind, "incomplete")]


def test_no_text_at_all_is_an_empty_message() -> None:
    events = written(a_writer(), [Delta(finish_reason=STOP)])
    assert accumulated(events).output_text == ""
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["message"]


def test_the_limit_of_built_in_tools_is_none_of_functions() -> None:
    unlimited = [item["type"] for item in written(a_writer(), EVERYTHING)[-1]["response"]["output"]]
    limited = written(a_writer(max_tool_calls=1), EVERYTHING)[-1]["response"]["output"]
    assert [item["type"] for item in limited] == unlimited
    assert unlimited.count("function_call") > 1


def test_a_call_that_cannot_be_made_is_incomplete() -> None:
    cut = generation_pb2.ToolCallDelta(index=0, incomplete=True)
    deltas = [
        Delta(tool_call=generation_pb2.ToolCallDelta(index=0, id="c", name="f")),
        Delta(tool_call=generation_pb2.ToolCallDelta(index=0, arguments='{"a": ')),
        Delta(tool_call=cut),
        Delta(finish_reason=common_pb2.FINISH_REASON_STOP),
    ]
    last = written(a_writer(), deltas)[-1]["response"]
    assert [(item["type"], item["status"], item["arguments"]) for item in last["output"]] == [
        ("function_call", "incomplete", '{"a": ')
    ]


def test_the_whole_answer_is_the_last_response_of_the_stream() -> None:
    streamed = written(a_writer(), EVERYTHING)[-1]["response"]
    choice = Choice()
    for delta in EVERYTHING:
        choice.add(delta)
    whole = orjson.loads(a_writer().whole([choice], COST))
    for volatile in ("created_at", "completed_at"):
        assert isinstance(whole.pop(volatile), int)
        streamed.pop(volatile)
    assert whole == streamed


def test_a_failure_ends_with_a_failed_response() -> None:
    writer = a_writer()
    stream = writer.opening(1) + writer.delta(0, Delta(text="Hel"))
    stream += writer.failure(ApiError(503, "the engine died", "service_unavailable_error", code="service_unavailable"))
    *events, done = split_events(stream)
    assert done == b"data: [DONE]\n\n"
    error, last = checked(events)[-2:]
    assert (error["type"], error["message"], error["code"]) == ("error", "the engine died", "service_unavailable")
    assert last["type"] == "response.failed"
    assert last["response"]["error"] == {"code": "server_error", "message": "the engine died"}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_response_in_the_background_is_queued_first() -> None:
    writer = a_writer(background=True)
    stream = writer.queued() + writer.opening(1)
    assert writer.opening(1) == b""
    events = checked(split_events(stream))
    assert kinds(events) == ["created", "queued", "in_progress"]
    assert [event["response"]["status"] for event in events] == ["queued", "queued", "in_progress"]


def test_a_call_out_of_order_is_an_error() -> None:
    writer = a_writer()
    writer.opening(1)
    with pytest.raises(InternalError, match="tool call 1 after 0"):
        writer.delta(0, call(1, "{}", id="c", name="f"))


def test_a_text_delta_is_the_json_that_a_careful_writer_would_make() -> None:
    writer = a_writer()
    writer.opening(1)
    writer.delta(0, Delta(text="first"))
    event = writer.delta(0, Delta(text='"\n\u2028é'))
    assert orjson.loads(data_of(event)) == {
        "type": "response.output_text.delta",
        "sequence_number": 5,
        "item_id": f"msg_{ID[5:]}_o0",
        "output_index": 0,
        "content_index": 0,
        "logprobs": [],
        "delta": '"\n\u2028é',
    }
