"""Tool calls with a tag per argument, as Qwen3-Coder, GLM, MiniMax and DeepSeek V3.2 write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema, json_of, string_rules, values_of
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, Reading
from triptych_frontend.conversation.syntaxes.json_scan import escaped
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, sequence

_MAX_TAG_CHARS = 256
#: Alternatives within alternatives.
_MAX_DEPTH = 3
_STRING, _ANY = frozenset({"string"}), ToolSchema({}).types({})
#: Names of arguments that tags can have.
_NAME = re.compile(r'[^<>"\s|]{1,128}')
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
        return _TaggedRules(self, number, tool, literals).rules()


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
            self._schema.check_name(argument.name, _NAME, "writes arguments in tags, where {} cannot be the name of one")
            name = f"argument_{number}_{index}"
            rules += self._argument(name, argument.name, argument.schema)
            arguments.append(name if argument.is_required else f"{name}?")
        if not arguments and self._schema.takes_any:
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
        return [f"{rule}: {sequence(head, f'value_{rule}', end)}", f"value_{rule}: {self._schema.json_value(schema)}"]

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


class TaggedCalls(CallReader):
    """Reads what a `TaggedSyntax` describes. A string's JSON is sent as it comes, other values when they are complete."""

    def __init__(self, syntax: TaggedSyntax, tools: Tools) -> None:
        self._syntax = syntax
        self._tools = tools
        #: The types of the value that is being read, its pieces, and what may be the marker behind it.
        self._types, self._pieces, self._tail = _ANY, list[str](), ""
        super().__init__(tools)

    def _calls(self) -> Reading[None]:
        return self._section(self._call, self._syntax.opener, self._syntax.end)

    def _call(self) -> Reading[None]:
        syntax, is_first = self._syntax, True
        name, token = yield from self._name()
        self._events.append(CallStart(self._known(name)))
        schema = ToolSchema(self._tools[name])
        types_of = {argument.name: schema.types(argument.schema) for argument in schema.arguments()}
        while (yield from self._marker((syntax.argument, syntax.call_end), token)) == syntax.argument:
            yield from self._argument(types_of, is_first)
            is_first, token = False, ""
        self._events += [CallArguments("{}" if is_first else "}"), CallEnd()]

    def _name(self) -> Reading[tuple[str, str]]:
        """The name of a tool, and the beginning of the tag behind it if that was read."""
        tag, end = "", self._syntax.name_end
        while len(tag) <= _MAX_TAG_CHARS:
            tag += (char := (yield))
            if end and tag.endswith(end):
                return tag.removesuffix(end).strip(), ""
            if not end and char in "<\n" and tag.strip() != char.strip():
                return tag[:-1].strip(), char.strip()
        return self._refuse()

    def _argument(self, types_of: Mapping[str, frozenset[str]], is_first: bool) -> Reading[None]:
        tag, match = "", None
        while match is None:
            tag += yield
            match = self._syntax.key.fullmatch(tag)
            if match is None and len(tag) > _MAX_TAG_CHARS:
                self._refuse()
        name = match[1].strip()
        self._types = types_of.get(name, _ANY)
        if self._syntax.says_type and (match := _IS_STRING.fullmatch(name)) is not None:
            name = match["key"]
            self._types = _STRING if match["is_string"] == "true" else _ANY - _STRING
        opening = f"{'{' if is_first else ', '}{json.dumps(name, ensure_ascii=False)}: "
        self._events.append(CallArguments(opening + '"' if self._types == _STRING else opening))
        text = yield from self._value()
        written = escaped(text) + '"' if self._types == _STRING else json_of("".join([*self._pieces, text]), self._types)
        self._events.append(CallArguments(written))
        self._pieces, self._tail = [], ""

    def _value(self) -> Reading[str]:
        """A value: sends or keeps its text, and returns the end. What may be a line break and the end marker is held back."""
        end, space, is_string = self._syntax.value_end, self._syntax.value_space, self._types == _STRING
        # A line break at the beginning belongs to the format.
        has_space = (char := (yield)) == space
        tail = "" if has_space else char
        while not tail.endswith(end):
            text, self._tail = tail[: -len(end)], tail[-len(end) :]
            if text and is_string:
                self._events.append(CallArguments(escaped(text)))
            else:
                self._pieces.append(text)
            tail = self._tail + (yield)
        text = tail.removesuffix(end)
        return text.removesuffix(space) if has_space else text

    def finish(self) -> list[CallEvent]:
        # The value as it is: nothing pretends that it is complete.
        text = "".join([*self._pieces, self._tail])
        return [CallArguments(escaped(text) if self._types == _STRING else text)] if text else []
