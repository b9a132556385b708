"""From the deltas of an answer to whole choices."""

from __future__ import annotations

from collections.abc import Iterable

from triptych.v1 import generation_pb2

Choice = generation_pb2.Choice


def whole_choices(deltas: Iterable[generation_pb2.ChoiceDelta]) -> list[Choice]:
    """The choices, by index."""
    choices: dict[int, Choice] = {}
    for delta in deltas:
        _add(choices.setdefault(delta.index, Choice(index=delta.index)), delta)
    return [choices[index] for index in sorted(choices)]


def _add(choice: Choice, delta: generation_pb2.ChoiceDelta) -> None:
    choice.text += delta.text
    choice.reasoning += delta.reasoning
    if delta.HasField("tool_call"):
        piece = delta.tool_call
        if piece.index == len(choice.tool_calls):
            choice.tool_calls.add(id=piece.id, name=piece.name)
        choice.tool_calls[piece.index].arguments += piece.arguments
    choice.token_ids.extend(delta.token_ids)
    choice.logprobs.extend(delta.logprobs)
    if delta.finish_reason:
        choice.finish_reason = delta.finish_reason
    if delta.HasField("stop_text"):
        choice.stop_text = delta.stop_text
