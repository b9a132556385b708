"""Tool calls as a list of Python calls: `[f(a=1), g(b="x")]`."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema, chain_rules
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, Reading
from triptych_frontend.conversation.syntaxes.json_scan import is_text, no_number
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
        if not arguments and whole.takes_any:
            any_value, pair = json_value({}, tool.field), f"KEY_{number} value_{number}"
            return [
                f'call_{number}: {json.dumps(tool.name + "(")} ({pair} (", " {pair})*)? ")"',
                f"KEY_{number}: /[A-Za-z_][A-Za-z0-9_]{{0,127}}=/",
                f"value_{number}: {any_value}",
            ]
        rules, pairs = [f'call_{number}: {json.dumps(tool.name + "(")} first_{number}_0 ")"'], []
        for index, (name, schema, is_required) in enumerate(arguments):
            whole.check_name(name, _KEYWORD, "calls tools as in Python, where {} cannot be the name of an argument")
            value = f"value_{number}_{index}"
            pairs.append((f"{json.dumps(f'{name}=')} {value}", is_required))
            rules.append(f"{value}: {whole.json_value(schema)}")
        return [*rules, *chain_rules(f"first_{number}", f"rest_{number}", pairs, '", "')]


class PythonicCalls(CallReader):
    """Reads a list of calls with keyword arguments. Each argument becomes JSON when it is complete."""

    #: The key of the argument that is being read, and the pieces of its value.
    _key, _pieces = "", list[str]()
    _num_arguments = 0

    def finish(self) -> list[CallEvent]:
        if not self.is_in_call or not self._key:
            return []
        # The value as it is: nothing pretends that it is complete.
        return [CallArguments(self._opening() + "".join(self._pieces).lstrip())]

    def _calls(self) -> Reading[None]:
        yield from self._one_of("[")
        is_last = False
        while not is_last:
            name = ""
            while (char := (yield)) != "(":
                if not (char.isalnum() or char in "_-.:/" or char.isspace()):
                    self._refuse()
                name += char
            self._events.append(CallStart(self._known(name.strip())))
            yield from self._keywords()
            is_last = (yield from self._one_of(",]")) == "]"

    def _keywords(self) -> Reading[None]:
        """The arguments of a call, up to the parenthesis behind them."""
        self._num_arguments, end = 0, ","
        while end == "," and (key := (yield from self._keyword())):
            self._key, self._pieces = key, []
            end = yield from self._value()
            self._events.append(CallArguments(self._opening() + _as_json("".join(self._pieces))))
            self._num_arguments, self._key = self._num_arguments + 1, ""
        self._events += [CallArguments("}" if self._num_arguments else "{}"), CallEnd()]

    def _keyword(self) -> Reading[str]:
        """The name of an argument; empty where the arguments end."""
        name = ""
        while (char := (yield)) != "=" or not name.strip():
            if char == ")" and not name.strip():
                return ""
            # Parameters of a JSON Schema need not be names in Python.
            if not (char.isalnum() or char in "_-.$:/" or char.isspace()):
                self._refuse()
            name += char
        return name.strip()

    def _value(self) -> Reading[str]:
        """A value. Returns the comma or the parenthesis behind it."""
        quote, is_escaped, depth = "", False, 0
        while True:
            char = yield
            if quote:
                if is_escaped:
                    is_escaped = False
                elif char == "\\":
                    is_escaped = True
                elif char == quote:
                    quote = ""
            elif char in _QUOTES:
                quote = char
            elif char in _OPENING:
                depth += 1
            elif depth and char in _CLOSING:
                depth -= 1
            elif not depth and char in ",)":
                return char
            self._pieces.append(char)

    def _opening(self) -> str:
        """What stands before an argument's value."""
        return f"{', ' if self._num_arguments else '{'}{json.dumps(self._key, ensure_ascii=False)}: "


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
