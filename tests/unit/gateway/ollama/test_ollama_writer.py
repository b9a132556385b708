"""The lines of every sequence of deltas say what the whole answer says."""

from __future__ import annotations

import time
from itertools import product
from typing import Any

import ollama
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.drivers.anthropic import STOP, Delta, call, text, thought
from support.drivers.ollama import joined, lines_of
from triptych.v1 import common_pb2
from triptych_gateway.apis.ollama.events import ChatWriter, GenerateWriter
from triptych_gateway.generation.call import Choice
from triptych_gateway.wire.cost import Cost
from triptych_gateway.wire.errors import ApiError

TIMINGS = common_pb2.Timings(preprocess_s=0.001, queue_s=0.002, prefill_s=0.003, decode_s=0.004)
COST = Cost(usage=common_pb2.Usage(prompt_tokens=9, completion_tokens=5), timings=TIMINGS)


def a_writer(kind: type[ChatWriter | GenerateWriter] = ChatWriter, *, ago_s: float = 0.0) -> ChatWriter | GenerateWriter:
    return kind("r1", "m:latest", time.perf_counter() - ago_s, False)


def streamed(deltas: list[Delta]) -> list[ollama.ChatResponse]:
    writer = a_writer()
    body = writer.opening(1) + b"".join(writer.delta(0, delta) for delta in deltas) + writer.closing(COST)
    return [ollama.ChatResponse.model_validate(line) for line in lines_of(body)]


def whole(deltas: list[Delta]) -> ollama.ChatResponse:
    choice = Choice()
    for delta in deltas:
        choice.add(delta)
    return ollama.ChatResponse.model_validate(orjson.loads(a_writer().whole([choice], COST)))


def steps(kinds: tuple[str, ...]) -> list[Delta]:
    deltas, num_calls = [], 0
    for kind in kinds:
        if kind == "tool":
            deltas += call(num_calls, "f", '{"a":', "[1", "]}")
            num_calls += 1
        else:
            deltas += thought("x", "y") if kind == "thinking" else text("a", "", "b")
    return deltas


def told(answer: ollama.ChatResponse) -> dict[str, Any]:
    """All but the times."""
    return answer.model_dump(exclude={"created_at", "total_duration", "load_duration"})


@pytest.mark.parametrize("kinds", [kinds for number in range(5) for kinds in product(("thinking", "text", "tool"), repeat=number)])
@pytest.mark.parametrize("is_apart", [True, False], ids=["the end apart", "the end with the last delta"])
def test_every_sequence_of_kinds(kinds: tuple[str, ...], is_apart: bool) -> None:
    deltas = steps(kinds)
    if is_apart or not deltas:
        deltas.append(Delta(finish_reason=STOP))
    else:
        deltas[-1].finish_reason = STOP
    lines = streamed(deltas)
    assert told(joined(lines)) == told(whole(deltas))
    # A call comes whole: clients read the arguments of each line as an object.
    calls = [one for line in lines for one in line.message.tool_calls or ()]
    assert [one.function.arguments for one in calls] == [{"a": [1]}] * kinds.count("tool")
    assert all(line.done_reason is None for line in lines[:-1])


@given(st.lists(st.text(), max_size=6))
def test_any_text(pieces: list[str]) -> None:
    lines = streamed([*text(*pieces), Delta(finish_reason=STOP)])
    assert "".join(line.message.content or "" for line in lines) == "".join(pieces)


def test_times_add_up() -> None:
    end = orjson.loads(a_writer(ago_s=1.0).closing(COST))
    assert 1_000_000_000 <= end["total_duration"] < 60_000_000_000
    assert end["load_duration"] == end["total_duration"] - 10_000_000
    assert (end["prompt_eval_duration"], end["eval_duration"]) == (3_000_000, 4_000_000)


def test_times_that_nobody_measured_are_left_out() -> None:
    end = orjson.loads(a_writer().closing(Cost(usage=COST.usage)))
    assert end.keys() & {"load_duration", "prompt_eval_duration", "eval_duration"} == set()
    assert (end["prompt_eval_count"], end["eval_count"]) == (9, 5)


@pytest.mark.parametrize("kind", [ChatWriter, GenerateWriter])
def test_a_heartbeat_is_a_line_without_news(kind: type[ChatWriter | GenerateWriter]) -> None:
    (line,) = lines_of(a_writer(kind).heartbeat())
    assert line.pop("created_at")
    content = {"message": {"role": "assistant", "content": ""}} if kind is ChatWriter else {"response": ""}
    assert line == {"model": "m:latest", **content, "done": False}


def test_a_failure_is_a_line_with_the_error() -> None:
    assert a_writer().failure(ApiError(500, "it broke", "server_error")) == b'{"error":"it broke"}\n'
    unknown = ApiError(404, "no model 'x' here; served are: y", "invalid_request_error", code="model_not_found", model="x")
    assert a_writer().failure(unknown) == b'{"error":"model \\"x\\" not found"}\n'
