"""A reader of calls that stand one after the other in a section with markers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, Status
from triptych_frontend.conversation.syntaxes.json_scan import JsonScan


class SectionReader(CallReader):
    """Reads calls until a marker ends their section.

    Args:
        opener: what begins each call; empty if a call begins at once, and is the only one of its section.
        closers: markers that may stand behind a call. They belong to the format.
        end: the marker behind the last call.
    """

    def __init__(self, names: Collection[str], opener: str, closers: Sequence[str] = (), end: str = "") -> None:
        super().__init__(names)
        self._opener = opener
        self._skipped = tuple(closers)
        self._end_marker = end
        #: What may be a marker.
        self._token = ""
        self._num_calls = 0

    def _start(self, char: str) -> list[CallEvent]:
        if not self._opener:
            return self._begin(char)
        return self._marker(char)

    def _marker(self, char: str) -> list[CallEvent]:
        """Between calls."""
        if char.isspace() and not self._token:
            return []
        token = self._token + char
        if token == self._opener:
            self._token, self._step = "", self._begin
        elif token == self._end_marker and self._num_calls:
            self.status = Status.DONE
        elif token in self._skipped and self._num_calls:
            self._token, self._is_accepted = "", True
        elif any(marker.startswith(token) for marker in (self._opener, self._end_marker, *self._skipped)):
            self._token = token
        else:
            return self._refuse()
        return []

    @abstractmethod
    def _begin(self, char: str) -> list[CallEvent]:
        """The first character of a call behind its opener, and all that follow until the step changes."""

    def _end_call(self) -> list[CallEvent]:
        """The arguments are complete."""
        self._token, self._num_calls = "", self._num_calls + 1
        if self._opener:
            self._step = self._marker
        else:
            self.status = Status.DONE
        return [CallEnd()]


class JsonArgumentsReader(SectionReader):
    """Reads calls whose arguments are a JSON object behind a header with the name."""

    def _begin_arguments(self, name: str, call_id: str | None = None) -> list[CallEvent]:
        """The header is complete, and a brace begins the arguments."""
        self._scan, self._step = JsonScan("{"), self._in_arguments
        return [CallStart(name, call_id), CallArguments("{")]

    def _in_arguments(self, char: str) -> list[CallEvent]:
        is_end = self._scan.feed(char)
        if is_end is None:
            return self._refuse()
        return [CallArguments(char), *self._end_call()] if is_end else [CallArguments(char)]
