"""Answers of a frontend that reasons, calls tools and writes JSON, as its deltas."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import common_pb2, generation_pb2

from support.fakes.frontend import Delta, Script


def tool_call(call: int, arguments: Sequence[str], call_id: str = "call_1", name: str = "find", index: int = 0) -> list[Delta]:
    """A call: its first piece has its name, then come the pieces of its arguments."""
    first = generation_pb2.ToolCallDelta(index=call, id=call_id, name=name)
    pieces = [generation_pb2.ToolCallDelta(index=call, arguments=piece) for piece in arguments]
    return [Delta(index=index, tool_call=piece) for piece in (first, *pieces)]


def end(reason: common_pb2.FinishReason = common_pb2.FINISH_REASON_STOP, index: int = 0) -> Delta:
    """The end of a choice, without further content."""
    return Delta(index=index, finish_reason=reason)


def calls_tools(*, text: str = "", reasoning: Sequence[str] = (), reason: common_pb2.FinishReason | None = None) -> Script:
    """An answer that calls two tools, after text and reasoning if there is any."""
    deltas = [Delta(reasoning=piece) for piece in reasoning] + ([Delta(text=text)] if text else [])
    deltas += tool_call(0, ['{"city"', ': "Par', 'is"}'], "call_1", "weather")
    deltas += tool_call(1, ['{"city": "Rome"}'], "call_2", "weather")
    return Script([[*deltas, end(reason or common_pb2.FINISH_REASON_TOOL_CALLS)]])
