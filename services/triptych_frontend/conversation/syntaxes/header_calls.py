"""Tool calls with the name in a header before JSON, as Mistral, DeepSeek and Kimi write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from triptych_frontend.conversation.syntaxes.call_reader import CallEvent, CallReader
from triptych_frontend.conversation.syntaxes.json_calls import JsonCalls
from triptych_frontend.conversation.syntaxes.section import JsonArgumentsReader
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value, sequence

_MAX_HEADER_CHARS = 256


@dataclass(frozen=True)
class HeaderSyntax(CallSyntax):
    """`opener`, a header, a JSON object, `closer`.

    Args:
        header: matches what stands between the opener and the JSON. Its group `name` is the tool. Its group `id`, if it has one, is
            the call's id.
        before: how a forced header begins before the name, and `after` how it ends behind it. `{index}` stands for a number.
        opener: marker that begins each call.
        closer: what stands behind the JSON of a forced call.
        closers: markers that may stand behind it. By default `closer`.
        end: marker behind the last call.
        or_json: JSON at once is a call, or a list of calls, as `JsonCalls` reads them.
    """

    header: re.Pattern[str]
    before: str = ""
    after: str = ""
    opener: str = ""
    closer: str = ""
    closers: tuple[str, ...] = ()
    end: str = ""
    or_json: bool = False

    def reader(self, tools: Tools) -> CallReader:
        return HeaderCalls(self, tools)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        after, _, rest = self.after.partition("{index}")
        has_index = "{index}" in self.after
        head = literals(f"{self.opener}{self.before}{tool.name}{after}")
        tail = sequence(r"/[0-9]{1,4}/", literals(rest)) if has_index else ""
        return [
            f"call_{number}: {sequence(head, tail, f'arguments_{number}', literals(self.closer))}",
            f"arguments_{number}: {json_value(tool.parameters, tool.field)}",
        ]


class HeaderCalls(JsonArgumentsReader):
    """Reads what a `HeaderSyntax` describes."""

    def __init__(self, syntax: HeaderSyntax, tools: Tools) -> None:
        super().__init__(tools, syntax.opener, syntax.closers or (syntax.closer,), syntax.end)
        self._syntax = syntax
        self._tools = tools
        self._header = ""
        self._json: JsonCalls | None = None

    def feed(self, char: str) -> list[CallEvent]:
        if self._syntax.or_json and self._json is None and not (self._header or self.is_in_call) and char in "[{":
            self._json = JsonCalls(self._tools)
            for space in self.unread:
                self._json.feed(space)
        if self._json is None:
            return super().feed(char)
        events = self._json.feed(char)
        self.status, self.is_in_call = self._json.status, self._json.is_in_call
        return events

    @property
    def unread(self) -> str:
        return super().unread if self._json is None else self._json.unread

    def finish(self) -> list[CallEvent]:
        return self._json.finish() if self._json is not None else []

    def _begin(self, char: str) -> list[CallEvent]:
        if self._step != self._begin:
            self._step = self._begin
        if char != "{":
            self._header += "" if char.isspace() and not self._header else char
            return self._refuse() if len(self._header) > _MAX_HEADER_CHARS else []
        match, self._header = self._syntax.header.fullmatch(self._header), ""
        if match is None or match["name"] not in self._names:
            return self._refuse()
        return self._begin_arguments(match["name"], match.groupdict().get("id"))
