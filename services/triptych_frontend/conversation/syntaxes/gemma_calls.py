"""Tool calls of Gemma 4: `call:name{key:<|"|>text<|"|>,other:1}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triptych_frontend.conversation.syntaxes.arguments import ToolSchema, chain_rules, string_rules, values_of
from triptych_frontend.conversation.syntaxes.call_reader import CallArguments, CallEnd, CallEvent, CallReader, CallStart, Reading
from triptych_frontend.conversation.syntaxes.json_scan import escaped
from triptych_frontend.conversation.syntaxes.syntax import CallableTool, CallSyntax, Literals, Tools, json_value, sequence
from triptych_frontend.errors import refusal

_HEAD = "call:"
_MAX_NAME_CHARS = 256
_MAX_SCALAR_CHARS = 1024
#: Rules of one tool.
_MAX_NAMES = 4096
_WORD = re.compile(r"[\w.$/-]+(?: +[\w.$/-]+)*")


@dataclass(frozen=True)
class GemmaSyntax(CallSyntax):
    """`call:`, the name, and arguments in braces. Keys have no quotation marks. Strings have the marker `quote` on both sides."""

    quote: str

    def reader(self, tools: Tools) -> CallReader:
        return GemmaCalls(tools, self.quote)

    def rules(self, number: int, tool: CallableTool, literals: Literals) -> list[str]:
        writer = _GemmaRules(self.quote, f"value_{number}", tool, literals)
        arguments = writer.object(tool.parameters)
        return [f"call_{number}: {sequence(literals(f'{_HEAD}{tool.name}'), arguments)}", *writer.rules]


class _GemmaRules:
    """Writes the rules of one tool's arguments."""

    def __init__(self, quote: str, prefix: str, tool: CallableTool, literals: Literals) -> None:
        self._quote = quote
        self._prefix = prefix
        self._tool = tool
        self._schema = ToolSchema(tool.parameters, tool.field)
        self._literals = literals
        self.rules = literals.until(f"{prefix}_text", quote)
        self._num_names = 0
        #: Reference -> its rule.
        self._references: dict[str, str] = {}
        self._has_any = False

    def object(self, schema: Mapping[str, Any]) -> str:
        """An object. Its keys are sorted, as in the model's template."""
        schema = self._schema.resolved(schema)
        self._schema.check_object(schema)
        arguments = sorted(self._schema.arguments(schema), key=lambda argument: argument.name)
        if not arguments:
            return '"{" "}"' if schema.get("additionalProperties") is False else f"{self._any()}_object"
        first, rest = self._new(), self._new()
        pairs = []
        for name, value, is_required in arguments:
            reason = "writes arguments without quotation marks, where {} cannot be the name of one"
            self._schema.check_name(name, _WORD, reason)
            pairs.append((sequence(json.dumps(f"{name}:"), self.value(value)), is_required))
        self.rules += chain_rules(first, rest, pairs, '","')
        return f'"{{" {first}_0 "}}"'

    def value(self, schema: Mapping[str, Any]) -> str:
        """A value of this schema."""
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return self._one_of([self._branch(branch) for branch in self._schema.branches(schema)])
        if reference not in self._references:
            self._references[reference] = rule = self._new()
            self.rules.append(f"{rule}: {self.value(self._schema.resolved(schema))}")
        return self._references[reference]

    def _branch(self, schema: Mapping[str, Any]) -> str:
        if "$ref" in schema or any(keyword in schema for keyword in ("anyOf", "oneOf")):
            return self.value(schema)
        values = values_of(schema)
        if values is not None:
            return self._one_of([self._literals(self._written(value)) for value in values])
        types = self._schema.types(schema)
        if len(types) > 1:
            self._schema.check_keywords(schema, {"type"})
            return self._any()
        [kind] = types
        if kind == "string":
            rule = self._new()
            self.rules += string_rules(rule, schema, self._quote, self._schema, self._literals)
            return sequence(self._literals(self._quote), rule)
        if kind == "object":
            return self.object(schema)
        return self._array(schema) if kind == "array" else self._scalar(schema)

    def _array(self, schema: Mapping[str, Any]) -> str:
        self._schema.check_keywords(schema, {"type", "items", "minItems", "maxItems"})
        items, least, most = schema.get("items"), int(schema.get("minItems", 0)), schema.get("maxItems")
        item = self.value(items) if isinstance(items, dict) else self._any()
        if most is not None and int(most) < max(least, 1):
            return '"[" "]"'
        further = f'("," {item}){{{max(least - 1, 0)},{"" if most is None else int(most) - 1}}}'
        return f'"[" ({item} {further}){"" if least else "?"} "]"'

    def _scalar(self, schema: Mapping[str, Any]) -> str:
        rule = self._new()
        self.rules.append(f"{rule}: {json_value(schema, self._tool.field)}")
        return rule

    def _any(self) -> str:
        """A value of any type."""
        rule = f"{self._prefix}_any"
        if not self._has_any:
            self._has_any = True
            pair = f"KEY_{self._prefix.upper()} {rule}"
            scalar = json_value({"type": ["boolean", "null", "number"]}, self._tool.field)
            self.rules += [
                f"{rule}: {self._literals(self._quote)} {self._prefix}_text | {rule}_scalar | {rule}_list | {rule}_object",
                f"{rule}_scalar: {scalar}",
                f'{rule}_list: "[" ({rule} ("," {rule})*)? "]"',
                f'{rule}_object: "{{" ({pair} ("," {pair})*)? "}}"',
                f"KEY_{self._prefix.upper()}: /[A-Za-z0-9_.$-]{{1,128}}:/",
            ]
        return rule

    def _written(self, value: Any) -> str:
        """A value as the model's template writes it."""
        if isinstance(value, str):
            return f"{self._quote}{value}{self._quote}"
        if isinstance(value, list):
            return f"[{','.join(map(self._written, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{self._written(item)}' for key, item in sorted(value.items()))}}}"
        return json.dumps(value)

    def _one_of(self, parts: list[str]) -> str:
        return parts[0] if len(parts) == 1 else f"({' | '.join(parts)})"

    def _new(self) -> str:
        self._num_names += 1
        if self._num_names > _MAX_NAMES:
            raise refusal(self._tool.field, "is too large for this model's calls")
        return f"{self._prefix}_{self._num_names}"


class GemmaCalls(CallReader):
    """Reads one call. Its arguments become JSON as they come."""

    def __init__(self, tools: Tools, quote: str) -> None:
        self._quote = quote
        #: What is read so far of a key, a marker or a value, and whether that is a string.
        self._token, self._is_string = "", False
        super().__init__(tools)

    def finish(self) -> list[CallEvent]:
        if not self.is_in_call or not self._token:
            return []
        return [CallArguments(escaped(self._token) if self._is_string else self._token)]

    def _calls(self) -> Reading[None]:
        head = ""
        while (char := (yield)) != "{":
            head += "" if char.isspace() and not head else char
            if not (head.startswith(_HEAD) or _HEAD.startswith(head)) or len(head) > _MAX_NAME_CHARS:
                self._refuse()
        self._events += [CallStart(self._known(head.removeprefix(_HEAD).strip())), CallArguments(char)]
        #: The brackets that must close, innermost last: values may be nested too deeply for calls within calls.
        closing = ["}"]
        while closing:
            end = (yield from self._key()) if closing[-1] == "}" else ""
            end = end or (yield from self._value(closing[-1]))
            if end in ("{", "["):
                closing.append("}" if end == "{" else "]")
                self._events.append(CallArguments(end))
                continue
            while closing and (end := end.strip() or (yield from self._visible())) != ",":
                if end != closing.pop():
                    self._refuse()
                self._events.append(CallArguments(end))
                end = ""
            if closing:
                self._events.append(CallArguments(", "))
        self._events.append(CallEnd())

    def _key(self) -> Reading[str]:
        """A key; or the end of an object without a further one, which it returns."""
        while (char := (yield)) != ":" or not self._token.strip():
            if char == "}" and not self._token.strip():
                self._token = ""
                return char
            self._token += char
            if len(self._token) > _MAX_NAME_CHARS or char in ",]{[":
                self._refuse()
        name, self._token = self._token.strip().removeprefix(self._quote).removesuffix(self._quote), ""
        self._events.append(CallArguments(f"{json.dumps(name, ensure_ascii=False)}: "))
        return ""

    def _value(self, closing: str) -> Reading[str]:
        """A value; or a bracket that opens one or ends the list. Returns the bracket, or what it read behind a value."""
        self._token = char = yield from self._visible()
        while self._quote.startswith(self._token):
            if self._token == self._quote:
                yield from self._text()
                return ""
            self._token += yield
        if len(self._token) > 1 or char in ",:}" or (char == "]" and closing != "]"):
            self._refuse()
        if char in "{[]":
            self._token = ""
            return char
        while (char := (yield)) not in ",}]":
            self._token += char
            if len(self._token) > _MAX_SCALAR_CHARS:
                self._refuse()
        value, self._token = self._token.strip(), ""
        self._events.append(CallArguments(_scalar_json(value)))
        return char

    def _text(self) -> Reading[None]:
        """A string behind its first marker."""
        self._events.append(CallArguments('"'))
        self._token, self._is_string = "", True
        while not (text := self._token + (yield)).endswith(self._quote):
            certain = max(len(text) - len(self._quote) + 1, 0)
            self._token = text[certain:]
            if certain:
                self._events.append(CallArguments(escaped(text[:certain])))
        self._token, self._is_string = "", False
        self._events.append(CallArguments(escaped(text.removesuffix(self._quote)) + '"'))


def _scalar_json(text: str) -> str:
    """A number or a word as JSON. Anything else becomes a string with its text."""
    is_json = re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null", text)
    return text if is_json else json.dumps(text, ensure_ascii=False)
