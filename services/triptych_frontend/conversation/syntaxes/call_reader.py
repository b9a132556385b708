"""What the readers of tool calls share."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from triptych_frontend.conversation.syntaxes.json_scan import JsonScan, RefusedError


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
T = TypeVar("T")
#: Reads characters. What it says of them is in the reader's `_events`.
Reading: TypeAlias = Generator[None, str, T]


class Status(enum.Enum):
    """What a reader made of the last character."""

    #: It belongs to the calls.
    READING = enum.auto()
    #: It is the last one of the calls.
    DONE = enum.auto()
    #: It does not belong to the format. `unread` and this character are not calls.
    REFUSED = enum.auto()


class CallReader(ABC):
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
        #: Of the character that is being read.
        self._events: list[CallEvent] = []
        self._reading = self._calls()
        next(self._reading)

    def feed(self, char: str) -> list[CallEvent]:
        """Take the next character. `status` then says whether it belongs to the calls."""
        events: list[CallEvent] = []
        self._events = events
        try:
            self._reading.send(char)
        except StopIteration:
            self.status = Status.DONE
        except RefusedError:
            self.status = Status.REFUSED
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

    @abstractmethod
    def _calls(self) -> Reading[None]:
        """Read the calls: each `yield` gives the next character. It returns with their last one."""

    def _visible(self) -> Reading[str]:
        """The next character that is no white space."""
        while (char := (yield)).isspace():
            pass
        return char

    def _one_of(self, chars: str) -> Reading[str]:
        """The next of some characters. White space may stand before it."""
        char = yield from self._visible()
        return char if char in chars else self._refuse()

    def _marker(self, markers: Sequence[str], token: str = "") -> Reading[str]:
        """The next of some markers. White space may stand before it.

        Args:
            token: its beginning, if that was read already.
        """
        token = token or (yield from self._visible())
        while token not in markers:
            if not any(marker.startswith(token) for marker in markers):
                self._refuse()
            token += yield
        return token

    def _arguments(self) -> Reading[None]:
        """Arguments in JSON, behind their first brace."""
        scan, is_end = JsonScan("{"), False
        while not is_end:
            is_end = scan.feed(char := (yield))
            self._events.append(CallArguments(char))

    def _section(self, call: Callable[[], Reading[None]], opener: str, end: str, closers: Sequence[str] = ()) -> Reading[None]:
        """Calls up to the marker behind the last one.

        Args:
            call: reads one of them.
            opener: what begins each call; empty if a call begins at once, and is the only one of its section.
            closers: markers that may stand behind a call. They belong to the format.
        """
        if not opener:
            yield from call()
            return
        has_calls, markers = False, [marker for marker in (opener, end, *closers) if marker]
        while (marker := (yield from self._marker(markers))) == opener or has_calls:
            if marker == opener:
                yield from call()
                has_calls = True
            elif marker == end:
                return
            else:
                self._is_accepted = True
        self._refuse()

    def _known(self, name: object) -> str:
        """The name, which must be that of a tool."""
        return name if isinstance(name, str) and name in self._names else self._refuse()

    def _refuse(self) -> NoReturn:
        raise RefusedError
