"""Grammars that force tool calls in a model's own format, in llguidance's dialect of Lark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from triptych.errors import InvalidRequestError
from triptych_common.constraints.compiler import json_rule

from triptych_frontend.output.formats.table import CallStyle, ToolFormat

#: Keywords beside which the properties of a schema are not all that an object may have.
_OPEN_KEYWORDS = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "$ref")

#: Names of arguments that PythonicCalls reads.
_KEYWORD = re.compile(r"[\w.$:/-]+(?: +[\w.$:/-]+)*")


class CallableTool(NamedTuple):
    """A tool that may be called."""

    name: str
    #: JSON Schema of its arguments, and the path of that schema in the request, for errors.
    parameters: Mapping[str, Any]
    field: str


class CallGrammar:
    """Writes the grammars of one format. Its methods raise InvalidRequestError if a schema cannot be honoured.

    Args:
        special_ids: text -> id of the tokenizer's special tokens. In a grammar they are not text.
    """

    def __init__(self, tools: ToolFormat, special_ids: Mapping[str, int]) -> None:
        self._format = tools
        self._shape = tools.shape
        self._special_ids = special_ids
        contents = sorted(filter(None, (tools.start, tools.end, *tools.markers)), key=len, reverse=True)
        self._special = re.compile("|".join(re.escape(text) for text in contents if text in special_ids) or r"(?!)")

    def forced(self, tools: Sequence[CallableTool], parallel: bool, after_reasoning: bool = False) -> str:
        """Only calls, at least one.

        Args:
            parallel: more calls than one may be made.
            after_reasoning: a model ends its reasoning before, and may write line breaks behind it.
        """
        before = r'"\n\n"? ' if after_reasoning else ""
        return "\n".join([f"start: {before}{self._calls(self._shape.before, parallel)}", *self._rules(tools)])

    def free(self, tools: Sequence[CallableTool], parallel: bool) -> str:
        """Text, calls or both; each call has the right shape."""
        start = self._format.start
        body = self._calls(self._shape.before.removeprefix(start), parallel)
        if not start or not self._shape.before.startswith(start):
            # Calls are told from text by their first character.
            opener = re.escape(self._format.openers)
            rules = [f"start: TEXT | {self._calls(self._shape.before, parallel)}", f"TEXT: /([^{opener}](?s:.*))?/"]
        elif start in self._special_ids:
            rules = [f"start: TEXT | TEXT {self._literal(start)} {body}", "TEXT: /(?s:.*)/"]
        else:
            marker = re.escape(start).replace("/", r"\/")
            rules = [
                f"start: TEXT | text_to_call {body}",
                f"text_to_call[lazy]: /(?s:.*){marker}/",
                f"TEXT: /(?s:.*)/ & ~/(?s:.*){marker}(?s:.*)/",
            ]
        return "\n".join([*rules, *self._rules(tools)])

    def _calls(self, before: str, parallel: bool) -> str:
        further = f"({self._literal(self._shape.between)} call)*" if parallel else ""
        return " ".join(filter(None, (self._literal(before), "call", further, self._literal(self._shape.after))))

    def _rules(self, tools: Sequence[CallableTool]) -> list[str]:
        rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]
        for number, tool in enumerate(tools):
            rules += self._tool_rules(number, tool)
        return rules

    def _tool_rules(self, number: int, tool: CallableTool) -> list[str]:
        style = self._shape.style
        if style is CallStyle.PYTHON:
            return _python_rules(number, tool)
        name = json.dumps(tool.name, ensure_ascii=False)
        if style is CallStyle.NAMED:
            before, after = f"{tool.name}[ARGS]", ""
        else:
            key = "arguments" if style is CallStyle.ARGUMENTS else "parameters"
            before, after = f'{{"name": {name}, "{key}": ', "}"
        call = " ".join(filter(None, (self._literal(before), f"arguments_{number}", self._literal(after))))
        return [f"call_{number}: {call}", f"arguments_{number}: {_json_rule(tool.parameters, tool.field)}"]

    def _literal(self, text: str) -> str:
        """A text in the grammar. Special tokens in it are tokens."""
        parts, end = [], 0
        for match in self._special.finditer(text):
            parts += [json.dumps(text[end : match.start()]), f"<[{self._special_ids[match[0]]}]>"]
            end = match.end()
        return " ".join(part for part in (*parts, json.dumps(text[end:])) if part != '""')


def _json_rule(schema: Mapping[str, Any], field: str) -> str:
    return json_rule(json.dumps(schema), field)


def closed_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema, whose objects have no properties but those that it names. A function has no other parameters either."""
    closed = dict(schema)
    properties = closed.get("properties")
    if isinstance(properties, dict):
        closed["properties"] = {name: closed_schema(item) if isinstance(item, dict) else item for name, item in properties.items()}
        if not any(keyword in closed for keyword in _OPEN_KEYWORDS):
            closed["additionalProperties"] = False
    if isinstance(closed.get("items"), dict):
        closed["items"] = closed_schema(closed["items"])
    return closed


def _python_rules(number: int, tool: CallableTool) -> list[str]:
    """Keyword arguments in the order of the schema. Their values are JSON, which the reader of calls takes too."""
    properties = tool.parameters.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = tool.parameters.get("required")
    required = required if isinstance(required, list) else []
    shared = {key: tool.parameters[key] for key in ("$defs", "definitions") if key in tool.parameters}
    rules = [f'call_{number}: {json.dumps(tool.name + "(")} first_{number}_0 ")"']
    for index, (name, schema) in enumerate(properties.items()):
        if not _KEYWORD.fullmatch(name):
            raise InvalidRequestError(
                f"this model calls tools as in Python, where {name!r} cannot be the name of an argument",
                field=tool.field,
                value=name,
            )
        value, rest = f"value_{number}_{index}", f"rest_{number}_{index + 1}"
        schema = schema if isinstance(schema, dict) else {}
        for kind, comma, skipped in (("first", "", f"first_{number}_{index + 1}"), ("rest", ", ", rest)):
            written = f"{json.dumps(f'{comma}{name}=')} {value} {rest}"
            rules.append(f"{kind}_{number}_{index}: {written}" + ("" if name in required else f" | {skipped}"))
        rules.append(f"{value}: {_json_rule(schema | shared, tool.field)}")
    return [*rules, *(f'{kind}_{number}_{len(properties)}: ""' for kind in ("first", "rest"))]
