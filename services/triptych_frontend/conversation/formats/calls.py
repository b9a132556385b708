"""What the parsers of all formats share: their options, and the events of tool calls."""

from __future__ import annotations

import json
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from triptych_frontend.conversation.events import Event, Stopped, Text, ToolArguments, ToolCallEnded, ToolCallStarted
from triptych_frontend.conversation.formats.table import CallIds, FormatTable
from triptych_frontend.conversation.syntaxes.json_scan import no_number

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


class AnswerParser(ABC):
    """A stage that tells reasoning and tool calls from text.

    Args:
        new_call_id: makes the ids of calls.
    """

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        self._calls = CallWriter(options, new_call_id)
        self._tools = options.tools
        self._out: list[Event] = []
        self._num_tokens = 0
        self._is_ended = False
        #: Output tokens of the reasoning that has ended, and where the one that has not ended began.
        self._num_reasoning_tokens = 0
        self._reasoning_start = 0

    @property
    @abstractmethod
    def _is_reasoning(self) -> bool:
        """Whether the reasoning is open."""

    @abstractmethod
    def _read(self, text: str) -> str:
        """Read the beginning of the text, or all of it. Returns the rest."""

    @abstractmethod
    def _finish(self) -> None:
        """The text has ended: send what was held back."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Output tokens of the reasoning so far, without its markers."""
        running = self._num_tokens - self._reasoning_start if self._is_reasoning else 0
        return self._num_reasoning_tokens + running

    def has_reasoned(self, num_tokens: int, position: int) -> bool:
        """Whether the reasoning is open, and took at least so many of the output tokens up to this position.

        Text of the last tokens may not have arrived here yet.
        """
        return self._is_reasoning and self._num_reasoning_tokens + position - self._reasoning_start >= num_tokens

    def feed(self, event: Event) -> list[Event]:
        if self._is_ended:
            return []
        if not isinstance(event, Text):
            return [*self.finish(), event]
        self._num_tokens = event.num_tokens
        self._read_all(event.text)
        return self._taken()

    def finish(self) -> list[Event]:
        if self._is_ended:
            return []
        self._finish()
        self._is_ended = True
        return self._taken()

    def _read_all(self, text: str) -> None:
        while text and not self._is_ended:
            text = self._read(text)

    def _taken(self) -> list[Event]:
        out, self._out = self._out, []
        return out

    def _end_reasoning(self) -> None:
        # The token with the marker does not count.
        self._num_reasoning_tokens += max(self._num_tokens - 1 - self._reasoning_start, 0)

    def _end_call(self, is_complete: bool = True) -> None:
        events = self._calls.end(is_complete)
        self._out += events
        self._is_ended = self._is_ended or isinstance(events[-1], Stopped)


def _is_object(text: str) -> bool:
    """Whether the text is a JSON object."""
    try:
        # The texts of numbers: converting long ones would take long.
        return isinstance(json.loads(text, parse_int=str, parse_float=str, parse_constant=no_number), dict)
    except (ValueError, RecursionError):
        return False


def long_id() -> str:
    """An id as OpenAI's."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """An id of nine characters, which Mistral's templates demand."""
    return "".join(secrets.choice(_ALPHANUMERICS) for _ in range(9))
