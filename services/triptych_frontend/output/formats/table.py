"""A model's output format as a transition table, for reasoning and tool calls together."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from functools import cached_property

from triptych_frontend.output.formats.call_reader import CallReader
from triptych_frontend.output.formats.json_calls import JsonCalls
from triptych_frontend.output.text_matcher import TextMatcher


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
    """

    name: str
    starts: tuple[str, ...]
    ends: tuple[str, ...]
    is_open: bool = False


class CallStyle(enum.Enum):
    """How one call is written when it is forced."""

    #: `{"name": "f", "arguments": {...}}`
    ARGUMENTS = enum.auto()
    #: `{"name": "f", "parameters": {...}}`
    PARAMETERS = enum.auto()
    #: `f[ARGS]{...}`
    NAMED = enum.auto()
    #: `f(a=1)`
    PYTHON = enum.auto()


@dataclass(frozen=True)
class CallShape:
    """How calls are written when they are forced: `before`, calls with `between` between them, `after`."""

    before: str
    between: str
    after: str
    style: CallStyle = CallStyle.ARGUMENTS


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes tool calls.

    Args:
        name: the name of the setting `tool_call_parser`.
        start: marker before a call, or before a list of them. Empty if there is none.
        end: marker after it. Empty if there is none.
        shape: how forced calls are written.
        openers: characters that begin a call where the answer begins, or behind another call. The call's name must then be known.
        separators: characters between two calls, beside whitespace.
        reader: reads the calls.
        markers: further texts that the format needs.
        is_short_id: ids of calls have nine characters, as the model's template demands.
    """

    name: str
    shape: CallShape
    start: str = ""
    end: str = ""
    openers: str = ""
    separators: str = ""
    reader: type[CallReader] = JsonCalls
    markers: tuple[str, ...] = ()
    is_short_id: bool = False


@dataclass(frozen=True)
class FormatTable:
    """The transitions of a model: state and marker -> next state. `reasoning` or `tools` may be missing.

    Markers that have no row in a state are text there.
    """

    reasoning: ReasoningFormat | None
    tools: ToolFormat | None
    rows: dict[tuple[State, str], State] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rows: dict[tuple[State, str], State] = {}
        if self.reasoning is not None:
            rows |= {(State.START, start): State.REASONING for start in self.reasoning.starts}
            rows |= {(State.REASONING, end): State.START for end in self.reasoning.ends}
        if self.tools is not None and self.tools.start:
            start = self.tools.start
            rows |= {(State.START, start): State.CALLS, (State.TEXT, start): State.CALLS}
            # The closing marker of the reasoning is missing.
            rows[State.REASONING, start] = State.CALLS
            # The closing marker of the call before is missing, or the format has none.
            rows[State.AFTER_CALL, start] = State.CALLS
        if self.tools is not None and self.tools.end:
            # Also when it is doubled.
            rows[State.AFTER_CALL, self.tools.end] = State.AFTER_CALL
        object.__setattr__(self, "rows", rows)

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
    def markers(self) -> tuple[str, ...]:
        """All texts that the format needs. Special tokens among them must become text."""
        tools = (self.tools.start, self.tools.end, *self.tools.markers) if self.tools is not None else ()
        reasoning = (*self.reasoning.starts, *self.reasoning.ends) if self.reasoning is not None else ()
        return tuple(marker for marker in (*reasoning, *tools) if marker)
