"""A conversation between request and template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2

from triptych_frontend.errors import check_one_of, refusal
from triptych_frontend.media.item import MediaPart

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class ChatTurn:
    """One message, as the template gets it."""

    role: str
    #: Texts and media in the order of the message. No two texts are adjacent.
    parts: tuple[str | MediaPart, ...]
    name: str | None = None
    #: Of the assistant.
    reasoning: str | None = None
    tool_calls: tuple[generation_pb2.ToolCall, ...] = ()
    #: Of role tool.
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All text of the turn."""
        return "\n".join(part for part in self.parts if isinstance(part, str))

    @property
    def media(self) -> list[MediaPart]:
        """The media of the turn, in order."""
        return [part for part in self.parts if isinstance(part, MediaPart)]

    @property
    def num_chars(self) -> int:
        """Characters of everything that a client wrote."""
        calls = sum(len(call.name) + len(call.arguments) for call in self.tool_calls)
        return len(self.text) + len(self.name or "") + len(self.reasoning or "") + calls


def turns_of(messages: Sequence[generation_pb2.ChatMessage]) -> list[ChatTurn]:
    """The turns of a conversation. Raises InvalidRequestError, which names the field."""
    if not messages:
        raise refusal("messages", "must not be empty", 1, 0)
    #: id of a call -> its tool, for templates that name the tool beside its result
    names: dict[str, str] = {}
    turns = []
    for index, message in enumerate(messages):
        if message.HasField("tool_call_id") and message.role == "tool" and message.tool_call_id not in names:
            field = f"messages[{index}].tool_call_id"
            call_id = message.tool_call_id
            reason = f"no earlier message has a tool call with the id {call_id!r}"
            raise InvalidRequestError(f"{field}: {reason}", field=field, value=call_id)
        turns.append(_turn(message, f"messages[{index}]", names.get(message.tool_call_id)))
        names |= {call.id: call.name for call in message.tool_calls}
    return turns


def media_items(messages: Sequence[generation_pb2.ChatMessage]) -> list[tuple[str, common_pb2.MediaItem]]:
    """The media of a conversation, each with its field."""
    return [
        (f"messages[{number}].content[{index}].media", part.media)
        for number, message in enumerate(messages)
        for index, part in enumerate(message.content)
        if part.WhichOneof("part") == "media"
    ]


def prompt_end(request: generation_pb2.ChatRequest, last: ChatTurn) -> tuple[bool, bool]:
    """Whether to start the assistant's turn, and whether to continue the last message. Raises InvalidRequestError."""
    if not request.continue_final_message:
        return request.add_generation_prompt if request.HasField("add_generation_prompt") else True, False
    if request.add_generation_prompt:
        raise refusal("continue_final_message", "and add_generation_prompt exclude each other", value="true")
    if last.role != "assistant":
        problem = f"needs a last message of the assistant; its role is {last.role!r}"
        raise refusal("continue_final_message", problem, "assistant", last.role)
    return False, True


def _turn(message: generation_pb2.ChatMessage, field: str, tool_name: str | None) -> ChatTurn:
    check_one_of(f"{field}.role", message.role, ROLES)
    _check_role(message, field)
    parts: list[str | MediaPart] = []
    for index, part in enumerate(message.content):
        kind = part.WhichOneof("part")
        if kind is None:
            raise refusal(f"{field}.content[{index}]", "is empty")
        if kind == "media":
            parts.append(MediaPart(part.media.modality))
        elif parts and isinstance(parts[-1], str):
            # Join into one string, so that no template can join two parts into a special token. vLLM also joins parts with a line
            # break.
            parts[-1] += "\n" + part.text
        else:
            parts.append(part.text)
    return ChatTurn(
        role=message.role,
        parts=tuple(parts) or ("",),
        name=message.name if message.HasField("name") else tool_name,
        reasoning=message.reasoning if message.HasField("reasoning") else None,
        tool_calls=tuple(message.tool_calls),
        tool_call_id=message.tool_call_id if message.HasField("tool_call_id") else None,
    )


def _check_role(message: generation_pb2.ChatMessage, field: str) -> None:
    """Refuse what belongs to another role. Raises InvalidRequestError."""
    for name, role, is_set in (
        ("reasoning", "assistant", message.HasField("reasoning")),
        ("tool_calls", "assistant", bool(message.tool_calls)),
        ("tool_call_id", "tool", message.HasField("tool_call_id")),
    ):
        if is_set and message.role != role:
            raise refusal(f"{field}.{name}", f"belongs to the role {role!r}; given: {message.role!r}", value=message.role)
