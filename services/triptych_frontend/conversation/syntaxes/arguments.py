"""The arguments of a tool, one by one: what the formats need that do not write them as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_MAX_REFERENCES = 16
_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
_ALL_TYPES = frozenset({"string", *_JSON_TYPES})


class Argument(NamedTuple):
    """An argument that a tool's schema names."""

    name: str
    #: Its JSON Schema, with the definitions of the tool's schema.
    schema: dict[str, Any]
    is_required: bool


def arguments_of(parameters: Mapping[str, Any]) -> Iterator[Argument]:
    """The arguments that the JSON Schema of a tool's parameters names, in its order."""
    properties, required = parameters.get("properties"), parameters.get("required")
    required = required if isinstance(required, list) else []
    shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        yield Argument(name, (schema if isinstance(schema, dict) else {}) | shared, name in required)


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference within the same schema leads to."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        target: Any = schema
        for key in reference[2:].split("/"):
            target = target.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(target, dict) else None
        if not isinstance(target, dict):
            return schema
        schema = target | {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    return schema


def types_of(schema: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types that a value of this schema may have. All of them, if it does not say."""
    schema = resolved(schema)
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared}) & _ALL_TYPES or _ALL_TYPES
    if isinstance(declared, list):
        return frozenset(item for item in declared if isinstance(item, str)) & _ALL_TYPES or _ALL_TYPES
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return frozenset(_type_of(value) for value in values) or _ALL_TYPES
    for keyword in ("anyOf", "oneOf"):
        options = schema.get(keyword)
        if isinstance(options, list) and depth < _MAX_REFERENCES:
            shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            return frozenset().union(*(types_of(option | shared, depth + 1) for option in options if isinstance(option, dict)))
    return _ALL_TYPES


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON of a value that was written without quotation marks.

    A value is a string if it may be one, unless it is JSON of another type that was declared beside. What was not declared at all
    is a string, or a JSON object or list.
    """
    others = {"array", "object"} if types == _ALL_TYPES else types - {"string"}
    source = text.strip()
    if others and _is_json_of(source, others):
        return source
    return json.dumps(text, ensure_ascii=False)


def _is_json_of(source: str, types: frozenset[str] | set[str]) -> bool:
    try:
        # Numbers are not converted: long ones would take long.
        value = json.loads(source, parse_int=_Integer, parse_float=_Number, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return False
    return _type_of(value) in types or (isinstance(value, _Integer) and "number" in types)


class _Integer(str):
    """The text of an integer."""


class _Number(str):
    """The text of another number."""


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


def _type_of(value: Any) -> str:
    if isinstance(value, _Integer):
        return "integer"
    if isinstance(value, _Number):
        return "number"
    if isinstance(value, bool):
        return "boolean"
    return next((name for name, kinds in _JSON_TYPES.items() if isinstance(value, kinds)), "string")
