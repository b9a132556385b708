"""The keywords of JSON Schema: which values each takes, and which cannot be honoured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

#: A JSON Schema: an object, or true or false.
Schema: TypeAlias = dict[str, Any] | bool

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

#: Keywords that constrain the value and cannot be honoured.
UNSUPPORTED = frozenset(
    {
        "not", "dependentSchemas", "dependentRequired", "dependencies", "contains", "propertyNames", "unevaluatedItems",
        "unevaluatedProperties", "uniqueItems", "$dynamicRef", "$recursiveRef", "divisibleBy", "extends", "disallow",
    }
)  # fmt: skip
#: Keywords among them that constrain nothing with this value.
NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
    "propertyNames": (True, {}),
    "not": (False,),
    "dependentSchemas": ({},),
    "dependentRequired": ({},),
    "dependencies": ({},),
}
#: Formats that llguidance knows. All others are annotations, as the specification says.
FORMATS = frozenset(
    {
        "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
    }
)  # fmt: skip


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 0."""
    return _is_number(value) and value >= 0 and value == int(value)


def _is_type(value: Any) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in TYPES for name in names)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_COUNT = (is_count, "a whole number of at least 0")
_NUMBER = (_is_number, "a number")
_STRING = (lambda value: isinstance(value, str), "a string")
_TYPE = (_is_type, f"one or several of {', '.join(TYPES)}")

#: keyword -> whether it takes a value, and what it takes; for keywords whose value holds no schema. `const` takes any value.
VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "type": _TYPE,
    "enum": (lambda value: isinstance(value, list) and bool(value), "a list of at least one value"),
    "const": (lambda value: True, "a value"),
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "pattern": _STRING,
    "format": _STRING,
    "required": (_is_strings, "a list of strings"),
    "$ref": _STRING,
}
#: Keywords whose value is a schema, a list of schemas, or an object of schemas.
ONE_SCHEMA = frozenset({"items", "additionalProperties", "additionalItems"})
SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
SCHEMA_MAPS = frozenset({"properties", "patternProperties"})


def types_of(schema: Schema) -> frozenset[str]:
    """The types that a schema's own `type` allows. A number may be an integer."""
    if not isinstance(schema, dict):
        return frozenset(TYPES) if schema else frozenset()
    names = schema.get("type", list(TYPES))
    allowed = frozenset([names] if isinstance(names, str) else names)
    return allowed | {"integer"} if "number" in allowed else allowed


def type_of(value: Any) -> str:
    """The narrowest type of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"
