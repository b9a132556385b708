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


class AnswerParser(ABC):
    """A stage that tells reasoning and tool calls from text.

    Args:
        new_call_id: makes the ids of calls. Default: random ones, in the form that the model's template takes.
    """

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        tools = options.table.tools
        self._new_call_id = new_call_id or (short_id if tools is not None and tools.call_ids is CallIds.SHORT else long_id)
        self._only_one_call = options.only_one_call
        self._tools = options.tools
        #: Calls so far and their ids, and the arguments of the last one.
        self._num_calls, self._ids, self._arguments = 0, set[str](), list[str]()
        #: A call has begun, and its arguments are not complete.
        self._is_in_call = False
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

    def _begin_call(self, name: str, call_id: str | None = None) -> None:
        self._num_calls, self._is_in_call = self._num_calls + 1, True
        self._arguments.clear()
        if call_id is None or call_id in self._ids:
            call_id = self._new_call_id()
        self._ids.add(call_id)
        self._out.append(ToolCallStarted(self._num_calls - 1, call_id, name))

    def _add_arguments(self, text: str) -> None:
        self._arguments.append(text)
        last = self._out[-1] if self._out else None
        if isinstance(last, ToolArguments):
            last.text += text
        else:
            self._out.append(ToolArguments(self._num_calls - 1, text))

    def _end_call(self, is_complete: bool = True) -> None:
        """The arguments have ended, or the text has. If only one call is allowed, and this one can be made, the choice ends too."""
        self._is_in_call = False
        is_complete = is_complete and _is_object("".join(self._arguments))
        self._out.append(ToolCallEnded(self._num_calls - 1, is_complete))
        if self._only_one_call and is_complete:
            self._out.append(Stopped(None))
            self._is_ended = True


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
