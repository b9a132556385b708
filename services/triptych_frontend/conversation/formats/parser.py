"""The stage that tells reasoning and tool calls from text."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import cast

from triptych_frontend.conversation.events import Reasoning, Text
from triptych_frontend.conversation.formats.calls import AnswerParser, ParserOptions
from triptych_frontend.conversation.formats.table import State
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEvent, CallReader, CallStart, Status
from triptych_frontend.conversation.syntaxes.syntax import CallSyntax

#: Longest text that was no call and is looked at again for the marker of one.
_MAX_SECOND_LOOK_CHARS = 256


class FormatParser(AnswerParser):
    """Turns text into events by a transition table.

    Nothing is lost: what looks like a call and is none becomes text. Whitespace beside reasoning and calls belongs to the format,
    not to the text.
    """

    def __init__(self, options: ParserOptions, new_call_id: Callable[[], str] | None = None) -> None:
        super().__init__(options, new_call_id)
        self._table = options.table
        tools = options.table.tools
        self._syntax = tools.syntax if tools is not None else None
        self._openers = tools.openers if tools is not None else ""
        self._skipped = string.whitespace + (tools.separators if tools is not None else "")
        #: Whitespace that may stand before a marker.
        self._spaces: list[str] = []
        #: The text before is a marker or a call, so that whitespace is not text.
        self._is_border = False
        #: What turns into text again if no call follows.
        self._before_calls = ""
        self._enter(State.REASONING if options.is_reasoning else State.START)
        self._is_border = options.is_reasoning or options.is_behind_reasoning

    @property
    def _is_reasoning(self) -> bool:
        return self._state is State.REASONING

    def _read(self, text: str) -> str:
        if self._state is State.TEXT or self._state is State.REASONING:
            return self._in_text(text)
        return self._in_calls(text) if self._state is State.CALLS else self._at_border(text)

    def _finish(self) -> None:
        while self._state is State.CALLS and not self._is_ended:
            self._read_all(self._finish_calls())
        if not self._is_ended and self._state is not State.AFTER_CALL:
            # What was held back behind a call is a part of a marker.
            self._say("".join(self._gaps) + self._held)
            if not self._is_reasoning:
                self._say_space()

    def _enter(self, state: State) -> None:
        self._state = state
        self._held = ""
        #: Whitespace before what is held, where text has not begun.
        self._gaps: list[str] = []
        if state in (State.TEXT, State.REASONING):
            self._scan = self._table.matchers[state].scan()

    def _cross(self, marker: str, before: str) -> None:
        """Follow the row of a marker. `before` is the whitespace in front of it."""
        origin, state = self._state, self._table.rows[self._state, marker]
        if state is State.CALLS:
            self._begin_calls(before + marker)
            return
        if state is State.REASONING:
            self._reasoning_start = self._num_tokens
        elif origin is State.REASONING:
            self._end_reasoning()
        self._spaces, self._is_border = [], True
        self._enter(state)

    def _at_border(self, text: str) -> str:
        skipped = self._skipped if self._state is State.AFTER_CALL else string.whitespace
        if not self._held and not text.strip(skipped):
            self._gaps.append(text)
            return ""
        text = "".join((*self._gaps, self._held, text))
        stripped = text.lstrip(skipped)
        before = text[: len(text) - len(stripped)]
        markers = self._table.border_markers[self._state]
        for marker in markers:
            if stripped.startswith(marker):
                self._cross(marker, before)
                return stripped[len(marker) :]
        if any(marker.startswith(stripped) for marker in markers):
            self._gaps, self._held = [before], stripped
            return ""
        if stripped[0] in self._openers:
            self._begin_calls(before)
            return stripped
        self._enter(State.TEXT)
        return text

    def _in_text(self, text: str) -> str:
        certain, marker, rest = self._scan.take(text)
        self._held = self._scan.held
        self._say(certain)
        if marker is not None:
            self._cross(marker.pattern, "".join(self._spaces))
        return rest

    def _say(self, text: str) -> None:
        """Send text of the answer or of the reasoning, but not whitespace that may stand before a marker."""
        if self._is_border:
            text = text.lstrip()
        body = text.rstrip()
        space = text[len(body) :]
        if body:
            body = "".join((*self._spaces, body))
            self._spaces, self._is_border = [], False
            self._out.append(Reasoning(body) if self._is_reasoning else Text(body, self._num_tokens))
        if space:
            self._spaces.append(space)

    def _say_space(self) -> None:
        """Send the whitespace at the end of the text."""
        if self._spaces and not self._is_border:
            self._out.append(Text("".join(self._spaces), self._num_tokens))

    def _begin_calls(self, before: str) -> None:
        self._before_calls, self._spaces = before, []
        # Without a format of calls, no marker and no character leads here.
        self._reader: CallReader = cast(CallSyntax, self._syntax).reader(self._tools)
        self._enter(State.CALLS)

    def _in_calls(self, text: str) -> str:
        reader = self._reader
        for position, char in enumerate(text):
            for event in reader.feed(char):
                self._add(event)
                if self._is_ended:
                    return ""
            if reader.status is Status.DONE:
                self._is_border = True
                self._enter(State.AFTER_CALL)
                return text[position + 1 :]
            if reader.status is Status.REFUSED:
                return self._take_back() + text[position:]
        return ""

    def _add(self, event: CallEvent) -> None:
        if isinstance(event, CallStart):
            # From here on, the format's text is a call.
            self._before_calls = ""
            self._is_border = True
            self._begin_call(event.name, event.call_id)
        elif isinstance(event, CallArguments):
            self._add_arguments(event.text)
        else:
            self._end_call()

    def _take_back(self) -> str:
        """There is no further call here: what no event stands for is text. Returns what may have a marker of the next call.

        Long pieces are not looked at again, so that no text takes more than linear time.
        """
        if self._is_in_call:
            self._end_call(is_complete=False)
        before, unread = self._before_calls, self._reader.unread
        self._enter(State.TEXT)
        if len(unread) > _MAX_SECOND_LOOK_CHARS:
            before, unread = before + unread, ""
        self._say(before)
        return unread

    def _finish_calls(self) -> str:
        """The text has ended within calls. Returns what may have a marker of the next call."""
        events = self._reader.finish()
        for event in events:
            self._add(event)
        if not events and not self._is_in_call:
            return self._take_back()
        if self._is_in_call:
            self._end_call(is_complete=False)
        self._enter(State.AFTER_CALL)
        return ""
