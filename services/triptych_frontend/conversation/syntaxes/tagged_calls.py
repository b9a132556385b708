"""Tool calls with a tag per argument, as Qwen3-Coder, GLM, MiniMax and DeepSeek V3.2 write them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from triptych.errors import InvalidRequestError

from triptych_frontend.conversation.syntaxes.arguments import arguments_of, json_of, resolved, types_of
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEvent, CallReader, CallStart
from triptych_frontend.conversation.syntaxes.section import SectionReader
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value, regex_of, sequence

_MAX_TAG_CHARS = 256
_STRING = frozenset({"string"})
#: What DeepSeek writes behind the name of an argument.
_IS_STRING = re.compile(r'(?P<key>.*?)" string="(?P<is_string>true|false)')
#: Keywords of a string's schema that a value without quotation marks can honour, and those that change nothing.
_KNOWN = {"type", "enum", "const", "pattern", "minLength", "maxLength"}
_NOTES = {"description", "title", "default", "examples", "deprecated", "$comment", "$defs", "definitions", "$ref", "nullable"}


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
        self._literals = literals

    def rules(self) -> list[str]:
        syntax, number, literals = self._syntax, self._number, self._literals
        head = literals(f"{syntax.opener}{self._tool.name}{syntax.name_end}{syntax.space}")
        arguments, rules = list[str](), list[str]()
        for index, argument in enumerate(arguments_of(self._tool.parameters)):
            if not re.fullmatch(r'[^<>"\s|]{1,128}', argument.name):
                raise InvalidRequestError(
                    f"this model writes arguments in tags, where {argument.name!r} cannot be the name of one",
                    field=self._tool.field,
                    value=argument.name,
                )
            name = f"argument_{number}_{index}"
            rules += self._argument(name, argument.name, argument.schema)
            arguments.append(name if argument.is_required else f"{name}?")
        if not arguments and self._tool.parameters.get("additionalProperties", True) is not False:
            rules += self._any_argument(f"argument_{number}")
            arguments.append(f"argument_{number}*")
        return [f"call_{number}: {sequence(head, *arguments, literals(f'{syntax.call_end}{syntax.behind}'))}", *rules]

    def _argument(self, rule: str, name: str, schema: Mapping[str, Any]) -> list[str]:
        syntax, types = self._syntax, types_of(schema)
        is_string = "string" in types
        if syntax.says_type and is_string and types != _STRING:
            texts = self._argument(f"{rule}_text", name, {"type": "string"})
            others = self._argument(f"{rule}_other", name, {**resolved(schema), "type": sorted(types - _STRING)})
            return [f"{rule}: {rule}_text | {rule}_other", *texts, *others]
        kind = f'" string="{str(is_string).lower()}' if syntax.says_type else ""
        head = self._literals(f"{syntax.argument}{name}{kind}{syntax.key_end}{syntax.value_space}")
        end = f"{syntax.value_space}{syntax.value_end}"
        if types == _STRING:
            value, rules = self._string(f"value_{rule}", schema, end)
        elif is_string:
            value, rules = f"value_{rule}", self._literals.until(f"value_{rule}", end)
        else:
            value, rules = sequence(f"value_{rule}", self._literals(end)), [f"value_{rule}: {json_value(schema, self._tool.field)}"]
        return [f"{rule}: {sequence(head, value, self._literals(syntax.space))}", *rules]

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
            *self._literals.until(f"value_{rule}", f"{syntax.value_space}{syntax.value_end}"),
        ]

    def _string(self, rule: str, schema: Mapping[str, Any], end: str) -> tuple[str, list[str]]:
        """A string: what stands for it in its argument, its end included, and the rules of that."""
        schema = resolved(schema)
        unknown = schema.keys() - _KNOWN - _NOTES
        if unknown:
            raise InvalidRequestError(
                f"this model writes strings without quotation marks, where {min(unknown)!r} cannot be honoured",
                field=self._tool.field,
                value=min(unknown),
            )
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            return sequence(rule, self._literals(end)), [f"{rule}: " + " | ".join(json.dumps(str(value)) for value in values)]
        bounds = [schema.get(key) for key in ("minLength", "maxLength")]
        pattern = schema.get("pattern")
        if pattern is None and bounds == [None, None]:
            return rule, self._literals.until(rule, end)
        terminal = rule.upper()
        parts = [f"~/(?s:.*){regex_of(end)}(?s:.*)/"]
        if bounds != [None, None]:
            parts.append(f"/(?s:.){{{bounds[0] or 0},{'' if bounds[1] is None else bounds[1]}}}/")
        if pattern is not None:
            parts.append(_regex(str(pattern)))
        return sequence(terminal, self._literals(end)), [f"{terminal}: " + " & ".join(["/(?s:.*)/", *parts])]


def _regex(pattern: str) -> str:
    """A schema's pattern, which may match anywhere in the value, as a terminal of the whole value."""
    start = "" if pattern.startswith("^") else "(?s:.*)"
    ends = pattern.endswith("$") and not pattern.endswith(r"\$")
    body = pattern.removeprefix("^")
    body = body[:-1] if ends else body
    return f"/{start}({body.replace('/', chr(92) + '/')}){'' if ends else '(?s:.*)'}/"


class TaggedCalls(SectionReader):
    """Reads what a `TaggedSyntax` describes. A string's JSON is sent as it comes, other values when they are complete."""

    def __init__(self, syntax: TaggedSyntax, tools: Tools) -> None:
        super().__init__(tools, syntax.opener, (), syntax.end)
        self._syntax = syntax
        self._tools = tools
        self._types: dict[str, frozenset[str]] = {}

    def finish(self) -> list[CallEvent]:
        if not self.is_in_call or self._step != self._value:
            return []
        # The value as it is: nothing pretends that it is complete.
        return [CallArguments(self._written(self._text))] if self._text else []

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
        self._types = {argument.name: types_of(argument.schema) for argument in arguments_of(self._tools[name])}
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
        types = self._types.get(name, types_of({}))
        if self._syntax.says_type and (match := _IS_STRING.fullmatch(name)) is not None:
            name = match["key"]
            types = _STRING if match["is_string"] == "true" else types_of({}) - _STRING
        self._value_types, self._text, self._step = types, "", self._first
        self._value_end = self._syntax.value_end
        opening = f"{', ' if self._num_arguments else '{'}{json.dumps(name, ensure_ascii=False)}: "
        self._num_arguments += 1
        return [CallArguments(opening + '"' if types == _STRING else opening)]

    def _first(self, char: str) -> list[CallEvent]:
        """The first character of a value."""
        self._step = self._value
        if char != self._syntax.value_space:
            return self._value(char)
        self._value_end = char + self._value_end
        return []

    def _value(self, char: str) -> list[CallEvent]:
        text = self._text = self._text + char
        end = self._value_end
        if text.endswith(end) or text == self._syntax.value_end:
            self._token, self._step = "", self._tags
            return [CallArguments(self._written(text.removesuffix(end) if text.endswith(end) else "", is_complete=True))]
        if self._value_types != _STRING or len(text) < len(end):
            return []
        certain = len(text) - len(end) + 1
        self._text = text[certain:]
        return [CallArguments(self._written(text[:certain]))]

    def _written(self, text: str, is_complete: bool = False) -> str:
        """The JSON of a value, or of a further piece of it."""
        if self._value_types == _STRING:
            return json.dumps(text, ensure_ascii=False)[1:-1] + ('"' if is_complete else "")
        return json_of(text, self._value_types) if is_complete else text
