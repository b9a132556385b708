"""Tool calls as JSON: `{"name": ..., "arguments": {...}}`, alone or in a list."""

from __future__ import annotations

import json
from dataclasses import dataclass

from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, Reading
from triptych_frontend.conversation.syntaxes.json_scan import JsonScan, is_text
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_call_rules

_ARGUMENTS = ("arguments", "parameters")
#: All keys that a call may have. An answer in JSON is told from a call by its first other key.
_KEYS = frozenset({"name", "id", "type", *_ARGUMENTS})
_NULL = "null"
_MAX_KEY_CHARS = 64


@dataclass(frozen=True)
class JsonSyntax(CallSyntax):
    """`{"name": "f", "arguments": {...}}`; `key` is the name of the arguments."""

    key: str = "arguments"

    def reader(self, tools: Tools) -> CallReader:
        return JsonCalls(tools)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        before = f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{self.key}": '
        return json_call_rules(number, tool, literals(before), literals("}"))


class JsonCalls(CallReader):
    """Reads one object, or a list of them. The arguments are slices of the model's own text.

    A call without arguments has `{}`. Arguments in a string, as some models write them, are taken out of it at its end.
    """

    #: Of the call that is being read; empty if it is not known yet.
    _name = ""

    def finish(self) -> list[CallEvent]:
        return [CallStart(self._name)] if self._name and not self.is_in_call else []

    def _calls(self) -> Reading[None]:
        yield from self._json((yield from self._one_of("[{")))

    def _json(self, char: str) -> Reading[None]:
        """Calls, of which the first character was read."""
        if char == "{":
            yield from self._object()
            return
        num_calls = 0
        while (yield from self._one_of("{]" if num_calls else "{")) == "{":
            yield from self._object()
            num_calls += 1
            if (yield from self._one_of(",]")) == "]":
                return

    def _object(self) -> Reading[None]:
        # Arguments that came before the name; None if none did.
        early: str | None = None
        has_arguments, char = False, ""
        while char != "}" and (yield from self._one_of('"}')) == '"':
            key = yield from self._key()
            yield from self._one_of(":")
            char = yield from self._visible()
            if char in ",}]:":
                self._refuse()
            text: str | None = None
            if char == "{" and key in _ARGUMENTS and self._name and not has_arguments:
                has_arguments, char = True, ""
                self._events += [CallStart(self._name), CallArguments("{")]
                yield from self._arguments()
            else:
                token, char = yield from self._value(char)
                if key == "name" and not self._name:
                    self._name, text = self._known(_decoded(token)), early
                elif key in _ARGUMENTS and not has_arguments:
                    has_arguments, inner = True, _decoded(token)
                    text = "{}" if token == _NULL else inner if isinstance(inner, str) and is_text(inner) else token
                    if not self._name:
                        early, text = text, None
            if text is not None:
                self._events += [CallStart(self._name), CallArguments(text)]
            if not char.strip():
                char = yield from self._one_of(",}")
            elif char not in ",}":
                self._refuse()
        if not self._name:
            self._refuse()
        if not has_arguments:
            self._events += [CallStart(self._name), CallArguments("{}")]
        self._events.append(CallEnd())
        self._name = ""

    def _key(self) -> Reading[str]:
        """A key behind its first quotation mark."""
        token, scan, is_end = '"', JsonScan('"'), False
        while not is_end:
            token += (char := (yield))
            if len(token) > _MAX_KEY_CHARS:
                self._refuse()
            is_end = scan.feed(char)
        key = str(_decoded(token))
        return key if key in _KEYS else self._refuse()

    def _value(self, char: str) -> Reading[tuple[str, str]]:
        """A value with this first character, and the character behind it if that was read."""
        pieces, scan, is_end = [char], JsonScan(char), False
        while not is_end:
            if scan.ends_before(char := (yield)):
                return "".join(pieces), char
            pieces.append(char)
            is_end = scan.feed(char)
        return "".join(pieces), ""


def _decoded(token: str) -> object:
    """The value of a JSON token; None if it is not valid."""
    try:
        return json.loads(token, strict=False)
    except (ValueError, RecursionError):
        return None
