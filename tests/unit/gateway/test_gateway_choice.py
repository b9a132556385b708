"""The deltas of a choice are collected by kind, and a waiting answer is merged without loss."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from triptych.errors import InternalError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.frontends.calls import Calls
from triptych_gateway.generation.call import Choice

Delta = generation_pb2.ChoiceDelta


def call(index: int, arguments: str, call_id: str = "", name: str = "") -> Delta:
    return Delta(tool_call=generation_pb2.ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments))


DELTAS = [
    Delta(reasoning="hm", token_ids=[1]),
    Delta(reasoning="m"),
    Delta(token_ids=[2]),
    Delta(text="I "),
    Delta(text="look."),
    call(0, "", "a", "find"),
    call(0, '{"x"'),
    call(0, ": 1}"),
    call(1, "{}", "b", "stop"),
    Delta(finish_reason=common_pb2.FINISH_REASON_STOP, token_ids=[3]),
]


def collected(deltas: list[Delta]) -> Choice:
    choice = Choice()
    for delta in deltas:
        choice.add(delta)
    return choice


def content(choice: Choice) -> object:
    calls = [(tool.id, tool.name, tool.arguments) for tool in choice.tool_calls]
    return choice.text, choice.reasoning, calls, choice.token_ids, bool(choice.last.finish_reason)


def test_a_choice_collects_by_kind() -> None:
    calls = [("a", "find", '{"x": 1}'), ("b", "stop", "{}")]
    assert content(collected(DELTAS)) == ("I look.", "hmm", calls, [1, 2, 3], True)


def test_a_call_out_of_order_is_the_frontends_fault() -> None:
    with pytest.raises(InternalError, match="tool call 1 after 0 calls"):
        Choice().add(call(1, "{}", "b", "stop"))


def test_many_pieces_of_a_call_take_a_time_of_their_number() -> None:
    choice = collected([call(0, "1234567") for _ in range(50_000)])
    start_s = time.process_time()
    assert len(choice.tool_calls[0].arguments) == 350_000
    assert time.process_time() - start_s < 2


@given(st.sets(st.integers(1, len(DELTAS) - 1)))
async def test_what_waits_is_merged_without_loss(cuts: set[int]) -> None:
    """However much of an answer waits in the mailbox, the client gets the same."""
    calls = Calls([], common_pb2.CallContext(), lambda calls, error: None, lambda: None)
    calls.sent(None, [7])  # type: ignore[arg-type]
    received: list[Delta] = []
    for place, delta in enumerate(DELTAS):
        calls.put(7, generation_pb2.GenerationCallResponse(number=7, choices=[delta]))
        if place in cuts:
            received += [choice for _, response in await calls.next() for choice in response.choices]
    calls.put_last(7, generation_pb2.GenerationCallResponse(number=7, usage=common_pb2.Usage()))
    received += [choice for _, response in await calls.next() for choice in response.choices]
    assert content(collected(received)) == content(collected(DELTAS))
    if not cuts:
        assert len(received) == 4  # reasoning, text, two calls
