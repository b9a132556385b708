"""What the parsers of all formats share: their options, and the events of tool calls."""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triptych_frontend.conversation.events import Event, Stopped, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.table import CallIds, FormatTable

_ALPHANUMERICS = string.ascii_letters + string.digits


@dataclass(frozen=True)
class ParserOptions:
    """How the answers of one request are read."""

    table: FormatTable
    #: The prompt ends inside of the reasoning.
    is_reasoning: bool = False
    #: The tools that may be called: name -> JSON Schema of the arguments.
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: End the choice after its first call.
    only_one_call: bool = False
    #: The prompt ends with the marker behind the reasoning.
    is_behind_reasoning: bool = False


class CallWriter:
    """Makes the events of a choice's tool calls.

    Args:
        new_call_id: makes the ids of calls. Default: random ones, in the form that the model's template takes.
    """

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        tools = options.table.tools
        self._new_call_id = new_call_id or (short_id if tools is not None and tools.call_ids is CallIds.SHORT else long_id)
        self._only_one_call = options.only_one_call
        self._pieces: list[str] = []
        self._ids = set[str]()
        #: Calls so far.
        self.num_calls = 0
        #: A call has begun, and its arguments are not complete.
        self.is_open = False

    def start(self, name: str, call_id: str | None = None) -> list[Event]:
        """A call begins."""
        self.num_calls, self.is_open = self.num_calls + 1, True
        self._pieces.clear()
        if call_id is None or call_id in self._ids:
            call_id = self._new_call_id()
        self._ids.add(call_id)
        return [ToolCallStarted(self.num_calls - 1, call_id, name)]

    def arguments(self, text: str) -> list[Event]:
        """More of its arguments."""
        self._pieces.append(text)
        return [ToolArguments(self.num_calls - 1, text)]

    def end(self, is_complete: bool = True) -> list[Event]:
        """Its arguments have ended, or the text has. If only one call is allowed, and this one can be made, the choice ends too."""
        self.is_open = False
        is_complete = is_complete and _is_object("".join(self._pieces))
        ended = ToolCallEnded(self.num_calls - 1, is_complete)
        return [ended, Stopped(None)] if self._only_one_call and is_complete else [ended]


def _is_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        # The texts of numbers: converting long ones would take long.
        return isinstance(json.loads(text, parse_int=str, parse_float=str, parse_constant=_no_number), dict)
    except (ValueError, RecursionError):
        return False


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def long_id() -> str:
    """An id as OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """An id of nine characters, which Mistral's templates demand."""
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(9))
