"""Merges deltas into whole choices."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.v1 import generation_pb2


def whole_choices(deltas: Iterable[generation_pb2.ChoiceDelta]) -> list[generation_pb2.Choice]:
    """The choices that the deltas add up to, by index."""
    choices: dict[int, generation_pb2.Choice] = {}
    for delta in deltas:
        choice = choices.setdefault(delta.index, generation_pb2.Choice(index=delta.index))
        add_delta(choice, delta)
    return [choices[index] for index in sorted(choices)]


def add_delta(choice: generation_pb2.Choice, delta: generation_pb2.ChoiceDelta) -> None:
    """Append a delta to a choice."""
    kind = delta.WhichOneof("delta")
    if kind == "text":
        choice.text += delta.text
    elif kind == "reasoning":
        choice.reasoning += delta.reasoning
    elif kind == "tool_call":
        _add_tool_call(choice, delta.tool_call)
    choice.token_ids.extend(delta.token_ids)
    choice.logprobs.extend(delta.logprobs)
    choice.prompt_logprobs.extend(delta.prompt_logprobs)
    if delta.finish_reason:
        choice.finish_reason = delta.finish_reason
        matched = delta.WhichOneof("matched_stop")
        if matched is not None:
            setattr(choice, matched, getattr(delta, matched))


def _add_tool_call(choice: generation_pb2.Choice, delta: generation_pb2.ToolCallDelta) -> None:
    while len(choice.tool_calls) <= delta.index:
        choice.tool_calls.add()
    call = choice.tool_calls[delta.index]
    call.id = delta.id or call.id
    call.name = delta.name or call.name
    call.arguments += delta.arguments
