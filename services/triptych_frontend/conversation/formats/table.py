"""A model's output format as a transition table, for reasoning and tool calls together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property

from triptych_frontend.conversation.syntaxes.syntax import CallRules
from triptych_frontend.conversation.text_matcher import TextMatcher


class State(enum.Enum):
    """What the text at a position is."""

    #: Nothing of the answer was written yet. Reasoning begins only here.
    START = enum.auto()
    TEXT = enum.auto()
    REASONING = enum.auto()
    #: Inside of calls. A CallReader decides where they end.
    CALLS = enum.auto()
    #: Behind a call. A closing marker or a further call may follow.
    AFTER_CALL = enum.auto()


@dataclass(frozen=True)
class ReasoningFormat:
    """How a model writes what it thinks.

    Args:
        name: the name of the setting `reasoning_parser`.
        starts: markers before the reasoning.
        ends: markers after it.
        is_open: the model never writes the marker before it, and always reasons.
        tokens: special tokens that are a part of a marker.
        answer: what stands before an answer that is no tool call.
        is_harmony: answers are messages with headers.
    """

    name: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False
    tokens: tuple[str, ...] = ()
    answer: str = ""
    is_harmony: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that the format needs."""
        return (*self.starts, *self.ends, *self.tokens)


class CallIds(enum.Enum):
    """The ids of calls that a model's template takes."""

    #: Any, such as OpenAI's.
    ANY = enum.auto()
    #: Nine letters and digits.
    SHORT = enum.auto()
    #: `functions.f:0`: the tool, and the number of the call in the conversation.
    FUNCTIONS = enum.auto()


@dataclass(frozen=True)
class CallShape:
    """How calls are written when they are forced: `before`, calls with `between` between them, `after`.

    `between` is None if a turn has one call.
    """

    before: str
    between: str | None
    after: str


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes tool calls.

    Args:
        name: the name of the setting `tool_call_parser`.
        syntax: how one call is written. All but messages with headers have a `CallSyntax`.
        shape: how forced calls are written.
        start: marker before a call, or before a list of them. Empty if there is none.
        end: marker after it. Empty if there is none.
        openers: characters that begin a call where the answer begins, or behind another call.
        separators: characters between two calls, beside whitespace.
        markers: further texts that the format needs.
        call_ids: the ids that the model's template takes.
        is_harmony: calls are messages with headers.
    """

    name: str
    syntax: CallRules
    shape: CallShape
    start: str = ""
    end: str = ""
    openers: str = ""
    separators: str = ""
    markers: tuple[str, ...] = ()
    call_ids: CallIds = CallIds.ANY
    is_harmony: bool = False


@dataclass(frozen=True)
class FormatTable:
    """The transitions of a model: state and marker -> next state. `reasoning` or `tools` may be missing.

    Markers that have no row in a state are text there.
    """

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None

    @cached_property
    def rows(self) -> dict[tuple[State, str], State]:
        """State and marker -> next state."""
        rows: dict[tuple[State, str], State] = {}
        if self.reasoning is not None:
            rows |= {(State.START, start): State.REASONING for start in self.reasoning.starts}
            rows |= {(State.REASONING, end): State.START for end in self.reasoning.ends}
        if self.tools is not None and self.tools.start:
            start = self.tools.start
            rows |= {(State.START, start): State.CALLS, (State.TEXT, start): State.CALLS}
            # The closing marker of the call before is missing, or the format has none.
            rows[State.AFTER_CALL, start] = State.CALLS
        if self.tools is not None and self.tools.end:
            # Also when it is doubled.
            rows[State.AFTER_CALL, self.tools.end] = State.AFTER_CALL
        return rows

    def markers_of(self, state: State) -> list[str]:
        """The markers that have a row in this state, longest first."""
        return sorted((marker for of_state, marker in self.rows if of_state is state), key=len, reverse=True)

    @cached_property
    def border_markers(self) -> dict[State, list[str]]:
        """The markers of the states in which text has not begun."""
        return {state: self.markers_of(state) for state in (State.START, State.AFTER_CALL)}

    @cached_property
    def matchers(self) -> dict[State, TextMatcher]:
        """Finds the markers inside of text."""
        return {state: TextMatcher(self.markers_of(state)) for state in (State.TEXT, State.REASONING)}

    @property
    def is_harmony(self) -> bool:
        """Whether answers are messages with headers, which `HarmonyParser` reads."""
        return any(part is not None and part.is_harmony for part in (self.reasoning, self.tools))

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that the format needs. Special tokens among them must become text."""
        tools = (self.tools.start, self.tools.end, *self.tools.markers) if self.tools is not None else ()
        reasoning = self.reasoning.markers if self.reasoning is not None else ()
        return tuple(marker for marker in (*reasoning, *tools) if marker)
