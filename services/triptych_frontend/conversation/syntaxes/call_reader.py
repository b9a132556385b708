"""What the readers of tool calls share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class CallStart:
    """The name of a call is known, and its arguments begin."""

    name: str
    #: Of a format whose models write it; None if the parser makes one.
    call_id: str | None = None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the arguments, as JSON."""

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
        names: the tools that may be called. Anything else is no call.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self.status = Status.READING
        self._unread: list[str] = []
        #: What is read so far is no text, although no event stands for it.
        self._is_accepted = False
        #: A call has begun and not ended.
        self.is_in_call = False
        self._step: Callable[[str], list[CallEvent]] = self._start

    def feed(self, char: str) -> list[CallEvent]:
        """Take the next character. `status` then says whether it belongs to the calls."""
        events = self._step(char)
        if events:
            self.is_in_call = not isinstance(events[-1], CallEnd)
        if events or self._is_accepted or self.status is Status.DONE:
            self._unread, self._is_accepted = [], False
        elif self.status is Status.READING:
            self._unread.append(char)
        return events

    @property
    def unread(self) -> str:
        """Characters that no event stands for."""
        return "".join(self._unread)

    def finish(self) -> list[CallEvent]:
        """The text has ended. Returns what can be said about a call that is not complete."""
        return []

    def _start(self, char: str) -> list[CallEvent]:
        """The first character."""
        raise NotImplementedError

    def _is_known(self, name: object) -> bool:
        return isinstance(name, str) and name in self._names

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
