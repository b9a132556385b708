"""What the readers of tool calls share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class CallStart:
    """The name of a call is known, and its arguments begin."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The arguments are complete."""


CallEvent: TypeAlias = CallStart | CallArguments | CallEnd


class Status(enum.Enum):
    """What a reader made of the last character."""

    #: It belongs to the calls.
    READING = enum.auto()
    #: It is the last one of the calls.
    DONE = enum.auto()
    #: It does not belong to the format. `unread` and this character are not calls.
    REFUSED = enum.auto()


class CallReader:
    """Reads tool calls, character by character. Each call becomes CallStart, any CallArguments, CallEnd.

    Args:
        names: only these names are calls. None: every name is one. A format without a marker of its own needs them, because a JSON
            answer may have a "name" too.
    """

    def __init__(self, names: Set[str] | None = None) -> None:
        self._names = names
        self.status = Status.READING
        #: Characters that no event stands for.
        self.unread = ""
        #: A call has begun and not ended.
        self.is_in_call = False
        self._step: Callable[[str], list[CallEvent]] = self._start

    def feed(self, char: str) -> list[CallEvent]:
        """Take the next character. `status` then says whether it belongs to the calls."""
        events = self._step(char)
        if events:
            self.unread = ""
            self.is_in_call = not isinstance(events[-1], CallEnd)
        elif self.status is Status.DONE:
            self.unread = ""
        elif self.status is Status.READING:
            self.unread += char
        return events

    def finish(self) -> list[CallEvent]:
        """The text has ended. Returns what can be said about a call that is not complete."""
        return []

    def _start(self, char: str) -> list[CallEvent]:
        """The first character."""
        raise NotImplementedError

    def _is_known(self, name: object) -> bool:
        return isinstance(name, str) and name != "" and is_text(name) and (self._names is None or name in self._names)

    def _refuse(self) -> list[CallEvent]:
        self.status = Status.REFUSED
        return []


def is_text(value: str) -> bool:
    """Whether a decoded string can be sent. An escape in JSON or Python may stand for half a character."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_CLOSING = {"{": "}", "[": "]"}
_ENDS_OF_SCALARS = frozenset(",}]")


class JsonScan:
    """Finds the end of one JSON value. It checks brackets and strings only.

    Args:
        first: the value's first character.
    """

    def __init__(self, first: str) -> None:
        self.is_scalar = first not in '{["'
        self._is_in_string = first == '"'
        self._is_escaped = False
        #: The brackets that must close, innermost last.
        self._closing = [_CLOSING[first]] if first in _CLOSING else []

    def ends_before(self, char: str) -> bool:
        """Whether the value is a number or a word, and ended with the character before this one."""
        return self.is_scalar and (char in _ENDS_OF_SCALARS or char.isspace())

    def feed(self, char: str) -> bool | None:
        """Take the next character, after the first. Returns whether it ends the value; None if it cannot belong to it."""
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_in_string = False
                return not self._closing
        elif char == '"':
            self._is_in_string = True
        elif char in _CLOSING:
            self._closing.append(_CLOSING[char])
        elif char in "}]":
            if not self._closing or self._closing.pop() != char:
                return None
            return not self._closing
        return False
