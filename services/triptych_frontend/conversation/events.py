"""Events that the output chain's stages pass to each other, and finally to the client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True)
class Text:
    """A piece of the answer's text."""

    text: str
    #: Output tokens up to the end of this text.
    num_tokens: int


@dataclass(slots=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(slots=True)
class ToolCallStarted:
    """A new tool call. Its arguments follow."""

    #: Which call of the choice.
    index: int
    call_id: str
    name: str


@dataclass(slots=True)
class ToolArguments:
    """A piece of a tool call's arguments, as the model wrote them."""

    index: int
    text: str


@dataclass(slots=True)
class ToolCallEnded:
    """The arguments of a tool call have ended."""

    index: int
    #: They are a JSON object, and the model closed the call. If not, the call cannot be made.
    is_complete: bool


@dataclass(slots=True)
class Stopped:
    """Nothing comes after this: a stop string was found, or the only allowed tool call is complete."""

    #: None for a tool call.
    stop_string: str | None


Event: TypeAlias = Text | Reasoning | ToolCallStarted | ToolArguments | ToolCallEnded | Stopped
