"""Tool calls as a list of Python calls: `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from typing import Any

from triptych.errors import InvalidRequestError

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema
from triptych_frontend.conversation.syntaxes.call_reader import (
    CallArguments,
    CallEnd,
    CallEvent,
    CallReader,
    CallStart,
    Status,
    is_text,
)
from triptych_frontend.conversation.syntaxes.json_scan import no_number
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value

_OPENING, _CLOSING, _QUOTES = "([{", ")]}", "\"'"
_WORDS = {"true": True, "false": False, "null": None}
#: Names of arguments that PythonicCalls reads.
_KEYWORD = re.compile(r"[\w.$:/-]+(?: +[\w.$:/-]+)*")


class PythonSyntax(CallSyntax):
    """`f(a=1)`. Forced values are JSON, which the reader takes too, in the order of the schema."""

    def reader(self, tools: Tools) -> CallReader:
        return PythonicCalls(tools)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        whole = ToolSchema(tool.parameters, tool.field)
        whole.check_object()
        arguments = list(whole.arguments())
        if not arguments and whole.resolved(tool.parameters).get("additionalProperties", True) is not False:
            any_value, pair = json_value({}, tool.field), f"KEY_{number} value_{number}"
            return [
                f'call_{number}: {json.dumps(tool.name + "(")} ({pair} (", " {pair})*)? ")"',
                f"KEY_{number}: /[A-Za-z_][A-Za-z0-9_]{{0,127}}=/",
                f"value_{number}: {any_value}",
            ]
        shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
        rules = [f'call_{number}: {json.dumps(tool.name + "(")} first_{number}_0 ")"']
        for index, (name, schema, is_required) in enumerate(arguments):
            if not _KEYWORD.fullmatch(name):
                raise InvalidRequestError(
                    f"this model calls tools as in Python, where {name!r} cannot be the name of an argument",
                    field=tool.field,
                    value=name,
                )
            value, rest = f"value_{number}_{index}", f"rest_{number}_{index + 1}"
            for kind, comma, skipped in (("first", "", f"first_{number}_{index + 1}"), ("rest", ", ", rest)):
                written = f"{json.dumps(f'{comma}{name}=')} {value} {rest}"
                rules.append(f"{kind}_{number}_{index}: {written}" + ("" if is_required else f" | {skipped}"))
            rules.append(f"{value}: {json_value({**schema, **shared}, tool.field)}")
        return [*rules, *(f'{kind}_{number}_{len(arguments)}: ""' for kind in ("first", "rest"))]


class PythonicCalls(CallReader):
    """Reads a list of calls with keyword arguments. Each argument becomes JSON when it is complete."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        #: The name or key that is being read, and the pieces of the value.
        self._token, self._pieces = "", list[str]()
        self._key = ""
        self._num_arguments = 0
        self._quote = ""
        self._is_escaped = False
        self._depth = 0

    def finish(self) -> list[CallEvent]:
        if not self.is_in_call or not self._key:
            return []
        # The value as it is: nothing pretends that it is complete.
        return [CallArguments(self._opening() + "".join(self._pieces).lstrip())]

    def _start(self, char: str) -> list[CallEvent]:
        if char == "[":
            self._step = self._name
        elif not char.isspace():
            return self._refuse()
        return []

    def _name(self, char: str) -> list[CallEvent]:
        if char == "(":
            name, self._token = self._token.strip(), ""
            if not self._is_known(name):
                return self._refuse()
            self._num_arguments, self._step = 0, self._argument_name
            return [CallStart(name)]
        if not (char.isalnum() or char in "_.-:/" or char.isspace()):
            return self._refuse()
        self._token += char
        return []

    def _argument_name(self, char: str) -> list[CallEvent]:
        if char == "=" and self._token.strip():
            self._key, self._token, self._step = self._token.strip(), "", self._value
        elif char == ")" and not self._token.strip():
            return self._end_call()
        # Parameters of a JSON Schema need not be names in Python.
        elif char.isalnum() or char in "_-.$:/" or char.isspace():
            self._token += char
        else:
            return self._refuse()
        return []

    def _value(self, char: str) -> list[CallEvent]:
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in _QUOTES:
            self._quote = char
        elif char in _OPENING:
            self._depth += 1
        elif self._depth and char in _CLOSING:
            self._depth -= 1
        elif not self._depth and char in ",)":
            argument = CallArguments(self._opening() + _as_json("".join(self._pieces)))
            self._num_arguments += 1
            self._key = self._token = ""
            self._pieces = []
            self._step = self._argument_name
            return [argument, *self._end_call()] if char == ")" else [argument]
        self._pieces.append(char)
        return []

    def _next(self, char: str) -> list[CallEvent]:
        if char == ",":
            self._token, self._step = "", self._name
        elif char == "]":
            self.status = Status.DONE
        elif not char.isspace():
            return self._refuse()
        return []

    def _opening(self) -> str:
        """What stands before an argument's value."""
        return f"{', ' if self._num_arguments else '{'}{json.dumps(self._key, ensure_ascii=False)}: "

    def _end_call(self) -> list[CallEvent]:
        self._token, self._step = "", self._next
        return [CallArguments("}" if self._num_arguments else "{}"), CallEnd()]


def _as_json(source: str) -> str:
    """JSON as it is, and a Python literal as JSON. Anything else becomes a string with its text."""
    source = source.strip()
    if _is_json(source):
        return source
    try:
        value = _literal(ast.parse(source, mode="eval").body)
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        return text if is_text(text) else json.dumps(value, allow_nan=False)
    except (SyntaxError, ValueError, RecursionError, MemoryError, TypeError):
        return json.dumps(source, ensure_ascii=False)


def _is_json(source: str) -> bool:
    """Whether it is JSON. Forced calls have JSON values, whose escapes mean something else in Python."""
    try:
        json.loads(source, parse_constant=no_number)
    except (ValueError, RecursionError):
        return False
    return True


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Dict):
        keys = [_literal(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_literal, node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    return ast.literal_eval(node)
