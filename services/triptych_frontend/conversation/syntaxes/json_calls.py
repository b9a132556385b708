"""Tool calls as JSON: `{"name": ..., "arguments": {...}}`, alone or in a list."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from triptych_frontend.conversation.syntaxes.call_reader import (
    CallArguments,
    CallEnd,
    CallEvent,
    CallReader,
    CallStart,
    Status,
    is_text,
)
from triptych_frontend.conversation.syntaxes.json_scan import JsonScan
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value, sequence

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
        return [
            f"call_{number}: {sequence(literals(before), f'arguments_{number}', literals('}'))}",
            f"arguments_{number}: {json_value(tool.parameters, tool.field)}",
        ]


class JsonCalls(CallReader):
    """Reads one object, or a list of them. The arguments are slices of the model's own text.

    A call without arguments has `{}`. Arguments in a string, as some models write them, are taken out of it at its end.
    """

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._is_list = False
        self._num_calls = 0
        self._begin_object()

    def finish(self) -> list[CallEvent]:
        return self._begin_call() if self._name and not self.is_in_call else []

    def _begin_object(self) -> None:
        self._name = ""
        self._key = ""
        #: The key that is being read, and the pieces of the value.
        self._token, self._pieces = "", list[str]()
        self._scan = JsonScan('"')
        #: Arguments that came before the name; None if none did.
        self._early: str | None = None
        self._has_arguments = False

    def _start(self, char: str) -> list[CallEvent]:
        if char == "[":
            self._is_list, self._step = True, self._item
            return []
        return self._item(char)

    def _item(self, char: str) -> list[CallEvent]:
        if char == "{":
            self._begin_object()
            self._step = self._key_or_end
        elif char == "]" and self._is_list and self._num_calls:
            self.status = Status.DONE
        elif not char.isspace():
            return self._refuse()
        return []

    def _item_end(self, char: str) -> list[CallEvent]:
        if char == ",":
            self._step = self._item
        elif char == "]":
            self.status = Status.DONE
        elif not char.isspace():
            return self._refuse()
        return []

    def _key_or_end(self, char: str) -> list[CallEvent]:
        if char == '"':
            self._token, self._scan, self._step = char, JsonScan(char), self._in_key
        elif char == "}":
            return self._end_object()
        elif not char.isspace():
            return self._refuse()
        return []

    def _in_key(self, char: str) -> list[CallEvent]:
        self._token += char
        if len(self._token) > _MAX_KEY_CHARS:
            return self._refuse()
        if self._scan.feed(char):
            self._key, self._step = str(_decoded(self._token)), self._colon
            if self._key not in _KEYS:
                return self._refuse()
        return []

    def _colon(self, char: str) -> list[CallEvent]:
        if char == ":":
            self._step = self._value
        elif not char.isspace():
            return self._refuse()
        return []

    def _value(self, char: str) -> list[CallEvent]:
        if char.isspace():
            return []
        if char in ",}]:":
            return self._refuse()
        self._pieces, self._scan, self._step = [char], JsonScan(char), self._in_value
        if char == "{" and self._key in _ARGUMENTS and self._name and not self._has_arguments:
            self._has_arguments, self._step = True, self._in_arguments
            return [*self._begin_call(), CallArguments(char)]
        return []

    def _in_arguments(self, char: str) -> list[CallEvent]:
        is_end = self._scan.feed(char)
        if is_end is None:
            return self._refuse()
        if is_end:
            self._step = self._comma_or_end
        return [CallArguments(char)]

    def _in_value(self, char: str) -> list[CallEvent]:
        if self._scan.ends_before(char):
            events = self._end_value()
            return events if self.status is Status.REFUSED else [*events, *self._comma_or_end(char)]
        self._pieces.append(char)
        is_end = self._scan.feed(char)
        if is_end is None:
            return self._refuse()
        return self._end_value() if is_end else []

    def _end_value(self) -> list[CallEvent]:
        self._step, token = self._comma_or_end, "".join(self._pieces)
        if self._key == "name" and not self._name:
            name = _decoded(token)
            if not self._is_known(name):
                return self._refuse()
            self._name = str(name)
            if self._early is not None:
                return [*self._begin_call(), CallArguments(self._early)]
        elif self._key in _ARGUMENTS and not self._has_arguments:
            self._has_arguments = True
            inner = _decoded(token)
            text = "{}" if token == _NULL else inner if isinstance(inner, str) and is_text(inner) else token
            if self._name:
                return [*self._begin_call(), CallArguments(text)]
            self._early = text
        return []

    def _comma_or_end(self, char: str) -> list[CallEvent]:
        if char == ",":
            self._step = self._key_or_end
        elif char == "}":
            return self._end_object()
        elif not char.isspace():
            return self._refuse()
        return []

    def _begin_call(self) -> list[CallEvent]:
        return [CallStart(self._name)]

    def _end_object(self) -> list[CallEvent]:
        if not self._name:
            return self._refuse()
        self._num_calls += 1
        if self._is_list:
            self._step = self._item_end
        else:
            self.status = Status.DONE
        begun = [] if self._has_arguments else [*self._begin_call(), CallArguments("{}")]
        self._name = ""
        return [*begun, CallEnd()]


def _decoded(token: str) -> object:
    """The value of a JSON token; None if it is not valid."""
    try:
        return json.loads(token, strict=False)
    except (ValueError, RecursionError):
        return None
