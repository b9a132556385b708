"""Tool calls with a tag per argument, as Qwen3-Coder, GLM, MiniMax and DeepSeek V3.2 write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triptych.errors import InvalidRequestError

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema, json_of, values_of
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEvent, CallReader, CallStart
from triptych_frontend.conversation.syntaxes.section import SectionReader
from triptych_frontend.conversation.syntaxes.strings import string_rules
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value, sequence

_MAX_TAG_CHARS = 256
#: Alternatives within alternatives.
_MAX_DEPTH = 3
_STRING, _ANY = frozenset({"string"}), ToolSchema({}).types({})
#: What DeepSeek writes behind the name of an argument.
_IS_STRING = re.compile(r'(?P<key>.*?)" string="(?P<is_string>true|false)')


@dataclass(frozen=True)
class TaggedSyntax(CallSyntax):
    """`opener`, the name, `name_end`, arguments, `call_end`. An argument: `argument`, its name, `key_end`, its value, `value_end`.

    White space may stand between these. A value is as it is: only values that are not strings are JSON.

    Args:
        space: what a forced call has between its parts.
        value_space: what stands on both sides of a value, and does not belong to it.
        says_type: the tag of an argument says whether it is a string.
        end: marker behind the last call; empty if each call has a section of its own.
        behind: what stands behind each forced call.
    """

    opener: str
    name_end: str
    argument: str
    key_end: str
    value_end: str
    call_end: str
    space: str = "\n"
    value_space: str = ""
    says_type: bool = False
    end: str = ""
    behind: str = ""

    @cached_property
    def key(self) -> re.Pattern[str]:
        """Matches the name of an argument, and what stands between it and the value."""
        return re.compile("(?s)(.*)" + r"\s*".join(map(re.escape, self.key_end.split())))

    def reader(self, tools: Tools) -> CallReader:
        return TaggedCalls(self, tools)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        written = _TaggedRules(self, number, tool, literals)
        return written.rules()


class _TaggedRules:
    """Writes the rules of one tool."""

    def __init__(self, syntax: TaggedSyntax, number: int, tool: CallableTool, literals: Literals) -> None:
        self._syntax = syntax
        self._number = number
        self._tool = tool
        self._schema = ToolSchema(tool.parameters, tool.field)
        self._literals = literals

    def rules(self) -> list[str]:
        syntax, number, literals = self._syntax, self._number, self._literals
        self._schema.check_object()
        head = literals(f"{syntax.opener}{self._tool.name}{syntax.name_end}{syntax.space}")
        arguments, rules = list[str](), list[str]()
        for index, argument in enumerate(self._schema.arguments()):
            if not re.fullmatch(r'[^<>"\s|]{1,128}', argument.name):
                raise InvalidRequestError(
                    f"this model writes arguments in tags, where {argument.name!r} cannot be the name of one",
                    field=self._tool.field,
                    value=argument.name,
                )
            name = f"argument_{number}_{index}"
            rules += self._argument(name, argument.name, argument.schema)
            arguments.append(name if argument.is_required else f"{name}?")
        if not arguments and self._schema.resolved(self._tool.parameters).get("additionalProperties", True) is not False:
            rules += self._any_argument(f"argument_{number}")
            arguments.append(f"argument_{number}*")
        return [f"call_{number}: {sequence(head, *arguments, literals(f'{syntax.call_end}{syntax.behind}'))}", *rules]

    def _argument(self, rule: str, name: str, schema: Mapping[str, Any], depth: int = 0) -> list[str]:
        """An argument, with an alternative for each type that it may have."""
        if depth > _MAX_DEPTH:
            self._schema.refuse("$ref")
        branches = self._schema.branches(schema)
        if len(branches) > 1:
            names = [f"{rule}_{index}" for index in range(len(branches))]
            rules = [
                line for one, branch in zip(names, branches, strict=True) for line in self._argument(one, name, branch, depth + 1)
            ]
            return [f"{rule}: {' | '.join(names)}", *rules]
        [schema], syntax = branches, self._syntax
        types, values = self._schema.types(schema), values_of(schema)
        if values is not None:
            return [f"{rule}: {' | '.join(self._tagged(name, value) for value in values)}"]
        is_text = "string" in types
        head = self._literals(f"{self._head(name, is_text)}{syntax.value_space}")
        if is_text:
            text = string_rules(f"value_{rule}", schema, syntax.value_end, self._schema, self._literals, syntax.value_space)
            return [f"{rule}: {sequence(head, f'value_{rule}', self._literals(syntax.space))}", *text]
        end = self._literals(f"{syntax.value_space}{syntax.value_end}{syntax.space}")
        whole = {**schema, **{key: self._tool.parameters[key] for key in ("$defs", "definitions") if key in self._tool.parameters}}
        return [f"{rule}: {sequence(head, f'value_{rule}', end)}", f"value_{rule}: {json_value(whole, self._tool.field)}"]

    def _head(self, name: str, is_text: bool) -> str:
        kind = f'" string="{str(is_text).lower()}' if self._syntax.says_type else ""
        return f"{self._syntax.argument}{name}{kind}{self._syntax.key_end}"

    def _tagged(self, name: str, value: Any) -> str:
        """The argument with this value."""
        syntax, is_text = self._syntax, isinstance(value, str)
        text = value if is_text else json.dumps(value, ensure_ascii=False)
        space = syntax.value_space
        return self._literals(f"{self._head(name, is_text)}{space}{text}{space}{syntax.value_end}{syntax.space}")

    def _any_argument(self, rule: str) -> list[str]:
        """An argument of a tool whose schema names none."""
        syntax = self._syntax
        kind = r"\" string=\"(true|false)" if syntax.says_type else ""
        head = sequence(
            self._literals(syntax.argument), f"KEY_{rule.upper()}", self._literals(f"{syntax.key_end}{syntax.value_space}")
        )
        return [
            f"{rule}: {sequence(head, f'value_{rule}', self._literals(syntax.space))}",
            f'KEY_{rule.upper()}: /[^<>"\\s|]{{1,128}}{kind}/',
            *self._literals.until(f"value_{rule}", syntax.value_end),
        ]


class TaggedCalls(SectionReader):
    """Reads what a `TaggedSyntax` describes. A string's JSON is sent as it comes, other values when they are complete."""

    def __init__(self, syntax: TaggedSyntax, tools: Tools) -> None:
        super().__init__(tools, syntax.opener, (), syntax.end)
        self._syntax = syntax
        self._tools = tools
        self._types: dict[str, frozenset[str]] = {}

    def _begin(self, char: str) -> list[CallEvent]:
        self._step = self._name
        self._tag = ""
        return self._name(char)

    def _name(self, char: str) -> list[CallEvent]:
        self._tag += char
        end = self._syntax.name_end
        if end and self._tag.endswith(end):
            return self._begin_call(self._tag.removesuffix(end).strip())
        if not end and (char == "<" or char == "\n") and self._tag.strip() != char.strip():
            events = self._begin_call(self._tag[:-1].strip())
            return events if char == "\n" or not events else [*events, *self._tags(char)]
        return self._refuse() if len(self._tag) > _MAX_TAG_CHARS else []

    def _begin_call(self, name: str) -> list[CallEvent]:
        if name not in self._names:
            return self._refuse()
        schema = ToolSchema(self._tools[name])
        self._types = {argument.name: schema.types(argument.schema) for argument in schema.arguments()}
        self._num_arguments = 0
        self._token, self._step = "", self._tags
        return [CallStart(name)]

    def _tags(self, char: str) -> list[CallEvent]:
        """Between arguments."""
        if char.isspace() and not self._token:
            return []
        syntax, token = self._syntax, self._token + char
        if token == syntax.argument:
            self._tag, self._step = "", self._key
        elif token == syntax.call_end:
            events: list[CallEvent] = [CallArguments("}" if self._num_arguments else "{}")]
            return [*events, *self._end_call()]
        elif syntax.argument.startswith(token) or syntax.call_end.startswith(token):
            self._token = token
        else:
            return self._refuse()
        return []

    def _key(self, char: str) -> list[CallEvent]:
        self._tag += char
        match = self._syntax.key.fullmatch(self._tag)
        if match is None:
            return self._refuse() if len(self._tag) > _MAX_TAG_CHARS else []
        return self._begin_value(match[1])

    def _begin_value(self, tag: str) -> list[CallEvent]:
        name = tag.strip()
        types = self._types.get(name, _ANY)
        if self._syntax.says_type and (match := _IS_STRING.fullmatch(name)) is not None:
            name = match["key"]
            types = _STRING if match["is_string"] == "true" else _ANY - _STRING
        self._value_types, self._pieces, self._tail, self._step = types, list[str](), "", self._first
        opening = f"{', ' if self._num_arguments else '{'}{json.dumps(name, ensure_ascii=False)}: "
        self._num_arguments += 1
        return [CallArguments(opening + '"' if types == _STRING else opening)]

    def _first(self, char: str) -> list[CallEvent]:
        """The first character of a value. A line break there belongs to the format."""
        self._step, self._has_space = self._value, char == self._syntax.value_space
        return [] if self._has_space else self._value(char)

    def _value(self, char: str) -> list[CallEvent]:
        """A character of a value. What may be a line break and the end marker is held back."""
        tail, end = self._tail + char, self._syntax.value_end
        if tail.endswith(end):
            text = tail.removesuffix(end)
            self._token, self._step = "", self._tags
            return [CallArguments(self._closed(text.removesuffix(self._syntax.value_space) if self._has_space else text))]
        certain = max(len(tail) - len(end), 0)
        text, self._tail = tail[:certain], tail[certain:]
        if self._value_types == _STRING:
            return [CallArguments(_escaped(text))] if text else []
        self._pieces.append(text)
        return []

    def _closed(self, text: str) -> str:
        """The JSON of the end of a value."""
        if self._value_types == _STRING:
            return _escaped(text) + '"'
        return json_of("".join([*self._pieces, text]), self._value_types)

    def finish(self) -> list[CallEvent]:
        if not self.is_in_call or self._step != self._value:
            return []
        # The value as it is: nothing pretends that it is complete.
        text = "".join([*self._pieces, self._tail])
        return [CallArguments(_escaped(text) if self._value_types == _STRING else text)] if text else []


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
