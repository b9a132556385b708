"""The arguments of a tool, one by one: what the formats need that do not write them as one JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from triptych.errors import InvalidRequestError

from triptych_frontend.conversation.syntaxes.json_scan import no_number
from triptych_frontend.conversation.syntaxes.syntax import Literals, in_slashes, json_value
from triptych_frontend.errors import refusal

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
_ALL_TYPES = frozenset({"string", *_JSON_TYPES})
#: Keywords that say more than the type, and that change nothing.
_NOTES = frozenset(
    {"description", "title", "default", "examples", "deprecated", "$comment", "$schema", "$id", "$defs", "definitions", "nullable"}
)
_BRANCHES = ("anyOf", "oneOf")
#: Of strings, those that `string_rules` enforces.
_STRING_KEYWORDS = {"type", "pattern", "minLength", "maxLength"}


class Argument(NamedTuple):
    """An argument that a tool's schema names."""

    name: str
    schema: Mapping[str, Any]
    is_required: bool


class ToolSchema:
    """The JSON Schema of a tool's arguments.

    Args:
        root: the whole schema. References lead to places in it.
        field: its path in the request, for errors.
    """

    def __init__(self, root: Mapping[str, Any], field: str = "") -> None:
        self._root = root
        self._field = field
        #: Reference -> its types. Schemas may refer to themselves, and to the same place very often.
        self._types: dict[str, frozenset[str]] = {}

    def arguments(self, schema: Mapping[str, Any] | None = None) -> Iterator[Argument]:
        """The properties of the tool's arguments, or of another object of the schema, in their order."""
        schema = self.resolved(self._root if schema is None else schema)
        properties, required = schema.get("properties"), schema.get("required")
        required = required if isinstance(required, list) else []
        for name, value in properties.items() if isinstance(properties, dict) else ():
            yield Argument(name, value if isinstance(value, dict) else {}, name in required)

    def check_object(self, schema: Mapping[str, Any] | None = None) -> None:
        """Raise InvalidRequestError if an object demands what its properties, written one by one, cannot show."""
        schema = self.resolved(self._root if schema is None else schema)
        self.check_keywords(schema, {"type", "properties", "required", "additionalProperties"})
        properties, required, others = schema.get("properties"), schema.get("required"), schema.get("additionalProperties")
        names = properties if isinstance(properties, dict) else {}
        unnamed = [name for name in required if name not in names] if isinstance(required, list) else []
        if unnamed or (isinstance(others, dict) and others):
            self.refuse("required" if unnamed else "additionalProperties")

    def check_name(self, name: str, pattern: re.Pattern[str], reason: str) -> None:
        """Raise InvalidRequestError with this reason, where {} stands for the name, if an argument cannot have the name."""
        if not pattern.fullmatch(name):
            raise InvalidRequestError(f"this model {reason.format(repr(name))}", field=self._field, value=name)

    @property
    def takes_any(self) -> bool:
        """Whether the arguments of a tool that names none may be any."""
        return self.resolved(self._root).get("additionalProperties") is not False

    def json_value(self, schema: Mapping[str, Any]) -> str:
        """A JSON value that matches a part of the schema, as part of a rule. Raises InvalidRequestError."""
        shared = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        return json_value({**schema, **shared}, self._field)

    def check_keywords(self, schema: Mapping[str, Any], known: set[str]) -> None:
        """Raise InvalidRequestError, which names a keyword that is not one of these."""
        if unknown := schema.keys() - known - _NOTES:
            self.refuse(min(unknown))

    def refuse(self, keyword: str) -> None:
        """Raise InvalidRequestError for a keyword."""
        reason = f"this model writes arguments without quotation marks, where {keyword!r} cannot be enforced"
        raise refusal(self._field, f"cannot be honoured: {reason}", value=keyword)

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema that a reference leads to. A reference that leads nowhere allows everything."""
        seen = set[str]()
        while isinstance(reference := schema.get("$ref"), str) and reference not in seen:
            seen.add(reference)
            schema = self._target(reference)
        return schema if "$ref" not in schema else {}

    def types(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """The JSON types that a value of this schema may have. All of them, if it does not say."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference not in self._types:
                self._types[reference] = frozenset()  # a circle adds nothing
                self._types[reference] = self.types(self._target(reference))
            return self._types[reference]
        declared = schema.get("type")
        if isinstance(declared, str | list):
            return frozenset([declared] if isinstance(declared, str) else declared) & _ALL_TYPES or _ALL_TYPES
        values = values_of(schema)
        if values is not None:
            return frozenset(map(type_of, values)) or _ALL_TYPES
        options = [option for keyword in _BRANCHES for option in schema.get(keyword) or () if isinstance(option, dict)]
        return frozenset[str]().union(*map(self.types, options)) if options else _ALL_TYPES

    def branches(self, schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The alternatives of a schema, each with one type. It is the only one, if it names no type."""
        schema = self.resolved(schema)
        for keyword in _BRANCHES:
            options = schema.get(keyword)
            if isinstance(options, list):
                self.check_keywords(schema, {keyword, "type"})
                return [option if isinstance(option, dict) else {} for option in options]
        declared = schema.get("type")
        if isinstance(declared, list) and len(declared) > 1 and values_of(schema) is None:
            return [_of_type(schema, kind) for kind in declared]
        return [schema]

    def _target(self, reference: str) -> Mapping[str, Any]:
        target: Any = self._root
        for key in reference.removeprefix("#").split("/")[1:] if reference.startswith("#") else [""]:
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        return target if isinstance(target, dict) else {}


#: Keywords that belong to one type.
_OF_TYPE = {
    "string": {"pattern", "minLength", "maxLength", "format"},
    "array": {"items", "minItems", "maxItems", "uniqueItems", "prefixItems", "contains"},
    "object": {"properties", "required", "additionalProperties", "patternProperties"},
}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}


def _of_type(schema: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The part of a schema that is about values of one type."""
    others = set[str]().union(*(keywords for name, keywords in _OF_TYPE.items() if name != kind))
    others |= set() if kind in ("integer", "number") else _OF_NUMBERS
    return {key: value for key, value in schema.items() if key not in others} | {"type": kind}


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The only values of a schema; None if it does not list them."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return values if isinstance(values, list) else None


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written without quotation marks.

    A value is a string if it may be one, unless it is JSON of another type that was declared beside. What was not declared at all
    is a string, or a JSON object or list.
    """
    others = frozenset({"array", "object"}) if types == _ALL_TYPES else types - {"string"}
    source = text.strip()
    if others and _is_json_of(source, others):
        return source
    return json.dumps(text, ensure_ascii=False)


def _is_json_of(source: str, types: frozenset[str]) -> bool:
    try:
        # Numbers are not converted: long ones would take long.
        value = json.loads(source, parse_int=_Integer, parse_float=_Number, parse_constant=no_number)
    except (ValueError, RecursionError):
        return False
    return type_of(value) in types or (isinstance(value, _Integer) and "number" in types)


class _Integer(str):
    """The text of an integer."""


class _Number(str):
    """The text of another number."""


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if isinstance(value, _Integer):
        return "integer"
    if isinstance(value, _Number):
        return "number"
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kinds in _JSON_TYPES.items() if isinstance(value, kinds)), "string")


def string_rules(
    rule: str, schema: Mapping[str, Any], end: str, whole: ToolSchema, literals: Literals, space: str = ""
) -> list[str]:
    """The rule for a string and the marker behind it, and the rules that it uses.

    Args:
        space: what stands between the two, and does not belong to the string.

    Raises:
        InvalidRequestError: the schema has a keyword that cannot be enforced there.
    """
    whole.check_keywords(schema, _STRING_KEYWORDS)
    least, most, pattern = schema.get("minLength"), schema.get("maxLength"), schema.get("pattern")
    if least is None and most is None and pattern is None:
        return literals.until(rule, end)
    bodies = []
    if least is not None or most is not None:
        bodies.append(f"(?s:.){{{int(least or 0)},{'' if most is None else int(most)}}}")
    if pattern is not None:
        body = _whole_pattern(str(pattern))
        if body is None:
            whole.refuse("pattern")
        bodies.append(str(body))
    return literals.until(rule, end, [f"{body}{in_slashes(space)}" for body in bodies])


def _whole_pattern(pattern: str) -> str | None:
    """A regular expression for the whole value, from one that may match anywhere in it. None if that cannot be told."""
    parts = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", pattern, re.DOTALL)
    starts, ends = parts[:1] == ["^"], parts[-1:] == ["$"]
    body = parts[1 if starts else 0 : len(parts) - 1 if ends else len(parts)]
    if "^" in body or "$" in body or ((starts or ends) and _has_bare_alternative(body)):
        return None
    return f"{'' if starts else '(?s:.*)'}({in_slashes(''.join(body))}){'' if ends else '(?s:.*)'}"


def _has_bare_alternative(parts: list[str]) -> bool:
    depth = 0
    for part in parts:
        depth += (part == "(") - (part == ")")
        if part == "|" and not depth:
            return True
    return False


def chain_rules(first: str, rest: str, pairs: Sequence[tuple[str, bool]], comma: str) -> list[str]:
    """Rules for arguments in a fixed order, with commas between them. `{first}_0` begins them.

    Args:
        first: name of the rules behind which no argument was written yet, and `rest` of those behind one.
        pairs: how each argument is written, and whether it is required.
        comma: as it stands in a rule.
    """
    rules = []
    for index, (pair, is_required) in enumerate(pairs):
        for rule, before in ((first, ""), (rest, f"{comma} ")):
            skipped = "" if is_required else f" | {rule}_{index + 1}"
            rules.append(f"{rule}_{index}: {before}{pair} {rest}_{index + 1}{skipped}")
    return [*rules, *(f'{rule}_{len(pairs)}: ""' for rule in (first, rest))]
