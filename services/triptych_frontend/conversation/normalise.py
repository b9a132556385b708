"""Fits a conversation to what a model's chat template shows, so that no turn of it is lost.

Templates know different roles: some print nothing for a role that they do not know, others raise. What a template shows is probed
once, when it is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from triptych.v1 import generation_pb2

from triptych_frontend.conversation.formats.table import CallIds
from triptych_frontend.conversation.turns import ChatTurn
from triptych_frontend.media.item import MediaPart

_INSTRUCTIONS = _SYSTEM, _DEVELOPER = "system", "developer"
_BETWEEN = "\n\n"
_SHORT_ID_CHARS = 9


@dataclass(frozen=True)
class TemplateTraits:
    """What a template shows."""

    #: A turn of the role system at the start.
    system: bool = True
    #: A turn of the role developer at the start; also behind one of the system.
    developer: bool = True
    developer_after_system: bool = True
    #: A second turn of the system at the start, and one later in the conversation.
    second_system: bool = True
    later_system: bool = True
    #: Arguments of tool calls are a dictionary; if not, a string.
    arguments_are_objects: bool = True
    #: The ids of calls that it takes.
    call_ids: CallIds = CallIds.ANY


def fitted(turns: Sequence[ChatTurn], traits: TemplateTraits) -> list[ChatTurn]:
    """The turns with all that the client said, in roles and places that the template shows.

    Instructions that it would leave out, or refuse, join the first turn of the system, or of the user if it shows no system.
    """
    return with_call_ids(_merged(_known_roles(turns, traits), traits), traits.call_ids)


def _known_roles(turns: Sequence[ChatTurn], traits: TemplateTraits) -> list[ChatTurn]:
    """Developers become the system where the template does not show them."""
    has_system = any(turn.role == _SYSTEM for turn in turns)
    is_shown = traits.developer and (traits.developer_after_system or not has_system)
    return [replace(turn, role=_SYSTEM) if turn.role == _DEVELOPER and not is_shown else turn for turn in turns]


def _merged(turns: list[ChatTurn], traits: TemplateTraits) -> list[ChatTurn]:
    """Instructions that the template does not show where they are join the first ones. Media stay in their order."""
    start = next((index for index, turn in enumerate(turns) if turn.role not in _INSTRUCTIONS), len(turns))
    leading, rest = turns[:start], turns[start:]
    later = [] if traits.later_system else [turn for turn in rest if turn.role in _INSTRUCTIONS and not turn.media]
    if not later and traits.system and _may_lead([turn.role for turn in leading], traits):
        return turns
    others = [turn for turn in rest if turn not in later]
    instructions = [*leading, *later]
    parts = _joined([turn.parts for turn in instructions])
    if traits.system:
        return [ChatTurn(instructions[0].role, parts, instructions[0].name), *others]
    if others and others[0].role == "user":
        return [replace(others[0], parts=_joined([parts, others[0].parts])), *others[1:]]
    return [ChatTurn("user", parts), *others] if instructions else others


def _may_lead(roles: list[str], traits: TemplateTraits) -> bool:
    """Whether the template shows all of the turns with instructions at the start."""
    is_pair = roles == [_SYSTEM, _DEVELOPER] and traits.developer_after_system
    return len(roles) <= 1 or is_pair or traits.second_system


def _joined(groups: Sequence[tuple[str | MediaPart, ...]]) -> tuple[str | MediaPart, ...]:
    """The parts of several turns as those of one. No two texts are adjacent."""
    joined: list[str | MediaPart] = []
    for group in groups:
        for part in group:
            last = joined[-1] if joined else None
            if isinstance(last, str) and isinstance(part, str):
                joined[-1] = last + _BETWEEN + part if last and part else last + part
            else:
                joined.append(part)
    return tuple(joined)


def with_call_ids(turns: Sequence[ChatTurn], call_ids: CallIds) -> list[ChatTurn]:
    """The turns, whose calls have ids that the template takes. Conversations that began elsewhere have others."""
    if call_ids is CallIds.ANY:
        return list(turns)
    taken = {call.id for turn in turns for call in turn.tool_calls if _fits(call, call_ids)}
    ids: dict[str, str] = {}
    written = []
    for turn in turns:
        calls = []
        for call in turn.tool_calls:
            ids[call.id] = call.id if _fits(call, call_ids) else _new_id(call, call_ids, taken)
            calls.append(generation_pb2.ToolCall(id=ids[call.id], name=call.name, arguments=call.arguments))
        result = ids.get(turn.tool_call_id, turn.tool_call_id) if turn.tool_call_id is not None else None
        written.append(replace(turn, tool_calls=tuple(calls), tool_call_id=result))
    return written


def _fits(call: generation_pb2.ToolCall, call_ids: CallIds) -> bool:
    """Whether the template takes the call's id."""
    if call_ids is CallIds.FUNCTIONS:
        return call.id.startswith(f"functions.{call.name}:")
    return len(call.id) == _SHORT_ID_CHARS and call.id.isalnum()


def _new_id(call: generation_pb2.ToolCall, call_ids: CallIds, taken: set[str]) -> str:
    """An id that no other call has. Adds it to those that are taken."""
    form = f"functions.{call.name}:{{}}" if call_ids is CallIds.FUNCTIONS else f"{{:0{_SHORT_ID_CHARS}d}}"
    new = next(one for number in count(len(taken)) if (one := form.format(number)) not in taken)
    taken.add(new)
    return new
