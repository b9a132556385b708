"""Tool calls with the name in a header before JSON, as Mistral, DeepSeek and Kimi write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallReader, CallStart, Reading
from triptych_frontend.conversation.syntaxes.json_calls import JsonCalls
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_call_rules, sequence

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
    closers: tuple[str, ...] | None = None
    end: str = ""
    or_json: bool = False

    def reader(self, tools: Tools) -> CallReader:
        return HeaderCalls(self, tools)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        after, _, rest = self.after.partition("{index}")
        has_index = "{index}" in self.after
        head = literals(f"{self.opener}{self.before}{tool.name}{after}")
        tail = sequence(r"/[0-9]{1,4}/", literals(rest)) if has_index else ""
        return json_call_rules(number, tool, sequence(head, tail), literals(self.closer))


class HeaderCalls(JsonCalls):
    """Reads what a `HeaderSyntax` describes."""

    def __init__(self, syntax: HeaderSyntax, tools: Tools) -> None:
        self._syntax = syntax
        super().__init__(tools)

    def _calls(self) -> Reading[None]:
        syntax = self._syntax
        return self._section(self._call, syntax.opener, syntax.end, (syntax.closer,) if syntax.closers is None else syntax.closers)

    def _call(self) -> Reading[None]:
        header, char = "", (yield from self._visible())
        if self._syntax.or_json and char in "[{":
            yield from self._json(char)
            return
        while char != "{":
            header += char
            if len(header) > _MAX_HEADER_CHARS:
                self._refuse()
            char = yield
        match = self._syntax.header.fullmatch(header)
        if match is None:
            self._refuse()
        self._events += [CallStart(self._known(match["name"]), match.groupdict().get("id")), CallArguments("{")]
        yield from self._arguments()
        self._events.append(CallEnd())
