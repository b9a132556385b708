"""Tool calls with the name before the JSON, as newer models of Mistral write them: `name[ARGS]{...}`."""

from __future__ import annotations

import re
from collections.abc import Set

from triptych_frontend.output.formats.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, JsonScan, Status
from triptych_frontend.output.formats.json_calls import JsonCalls

#: What stands before the arguments. Some versions write an id, others leave [ARGS] out.
_HEADER = re.compile(r"\s*([\w.:/-]+)\s*(?:\[CALL_ID\][^\[\]]*)?(?:\[ARGS\])?\s*")
_MAX_HEADER_CHARS = 256


class NamedCalls(CallReader):
    """Reads one call with its name first, or, where JSON begins at once, what `JsonCalls` reads."""

    def __init__(self, names: Set[str] | None = None) -> None:
        super().__init__(names)
        self._header = ""
        self._json: JsonCalls | None = None
        self._scan = JsonScan("{")

    def feed(self, char: str) -> list[CallEvent]:
        if self._json is None and not self._header and char in "[{":
            self._json = JsonCalls(self._names)
            for space in self.unread:
                self._json.feed(space)
        if self._json is None:
            return super().feed(char)
        events = self._json.feed(char)
        self.status, self.unread, self.is_in_call = self._json.status, self._json.unread, self._json.is_in_call
        return events

    def finish(self) -> list[CallEvent]:
        return self._json.finish() if self._json is not None else []

    def _start(self, char: str) -> list[CallEvent]:
        if char != "{":
            self._header += "" if char.isspace() and not self._header else char
            return self._refuse() if len(self._header) > _MAX_HEADER_CHARS else []
        match = _HEADER.fullmatch(self._header)
        if match is None or not self._is_known(match[1]):
            return self._refuse()
        self._step = self._in_arguments
        return [CallStart(match[1]), CallArguments(char)]

    def _in_arguments(self, char: str) -> list[CallEvent]:
        is_end = self._scan.feed(char)
        if is_end is None:
            return self._refuse()
        if is_end:
            self.status = Status.DONE
            return [CallArguments(char), CallEnd()]
        return [CallArguments(char)]
