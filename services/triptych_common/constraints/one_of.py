"""Turns `oneOf` into `anyOf` of branches that exclude each other, so that every output matches exactly one branch.

Branches of listed values become the list of values that only one branch has. Two branches of objects, each of which requires a
property that the other does not, both give up the other's property. That leaves out some values that the schema allows, but allows
none that it forbids. Other branches that may overlap are refused. (llguidance would refuse more of them, or treat them as anyOf.)
"""

from __future__ import annotations

import json
from typing import Any

from triptych_common.constraints.json_keywords import TYPES, Schema, type_of, types_of
from triptych_common.constraints.json_schema import ReadSchema, SchemaError, children

#: How deep schemas are compared.
_MAX_DEPTH = 8
#: Most comparisons of schemas and values for all branches of a schema: about a third of a second.
_MAX_COMPARISONS = 50_000
_ANY_TYPE = frozenset(TYPES)


def resolve_one_of(read: ReadSchema) -> None:
    """Replace each `oneOf` of the schema, in place. Raises SchemaError for branches that may overlap."""
    resolver = _Resolver(read)
    for schema in (read.root, *read.defs.values()):
        resolver.resolve(schema)


class _Resolver:
    def __init__(self, read: ReadSchema) -> None:
        self._read = read
        self._num_left = _MAX_COMPARISONS
        self._begun: set[int] = set()  # ids of schemas that are resolved, or being resolved
        self._done: set[int] = set()

    def resolve(self, schema: Schema) -> None:
        if id(schema) in self._begun or not isinstance(schema, dict):
            return
        self._begun.add(id(schema))
        for child in children(schema):
            self.resolve(child)
        if "oneOf" in schema:
            path = self._read.path(schema)
            exclusive = self._exclusive(schema, [self._inlined(branch) for branch in schema.pop("oneOf")], f"{path}/oneOf")
            if "anyOf" in schema:
                schema["allOf"] = [*schema.get("allOf", []), {"anyOf": exclusive}]
            else:
                schema["anyOf"] = exclusive
        self._done.add(id(schema))

    def _inlined(self, schema: Schema) -> Schema:
        """What a schema refers to, if it is only a reference; a schema that is still being resolved stays a reference."""
        seen = set()
        while isinstance(schema, dict) and set(schema) == {"$ref"} and schema["$ref"] not in seen:
            seen.add(schema["$ref"])
            target = self._target(schema)
            self.resolve(target)
            if isinstance(target, dict) and id(target) not in self._done:
                break
            schema = target
        return schema

    def _target(self, schema: dict[str, Any]) -> Schema:
        return self._read.defs[schema["$ref"].removeprefix("#/$defs/")]

    def _exclusive(self, schema: dict[str, Any], branches: list[Schema], path: str) -> list[Schema]:
        finite = [_listed_values(branch) for branch in branches]
        if all(values is not None for values in finite):
            return [{"enum": _in_one_only([values for values in finite if values is not None], path)}]
        within, exclusive = types_of(schema), list(branches)
        for second, b in enumerate(branches):
            for first, a in enumerate(branches[:second]):
                if self._num_left <= 0:
                    raise SchemaError(path, "the schema has too many branches to find out whether exactly one matches")
                if self._are_disjoint(a, b, within):
                    continue
                keys = _own_keys(a, b, within)
                if keys is None:
                    raise SchemaError(
                        path,
                        f"a value may match both branch {first} and branch {second}, and exactly one must match; use anyOf, or a "
                        "required property whose const differs",
                    )
                exclusive[first] = _without(exclusive[first], keys[1])
                exclusive[second] = _without(exclusive[second], keys[0])
        return exclusive

    def _are_disjoint(self, a: Schema, b: Schema, within: frozenset[str] = _ANY_TYPE, depth: int = 0) -> bool:
        """Whether certainly no value of the types `within` matches both."""
        self._num_left -= 1
        if a is False or b is False:
            return True
        if depth > _MAX_DEPTH or a is True or b is True:
            return False
        for one, other in ((a, b), (b, a)):
            conjuncts = list(one.get("allOf", ())) + ([self._target(one)] if "$ref" in one else [])
            if any(self._are_disjoint(part, other, within, depth + 1) for part in conjuncts):
                return True
            if "anyOf" in one and all(self._are_disjoint(part, other, within, depth + 1) for part in one["anyOf"]):
                return True
            values = _listed_values(one, with_others=True)
            if values is not None:
                self._num_left -= len(values)
                if not any(_may_match(value, other) for value in _also_listed(values, other)):
                    return True
        return all(self._differ_in(name, a, b, depth) for name in types_of(a) & types_of(b) & within)

    def _differ_in(self, name: str, a: dict[str, Any], b: dict[str, Any], depth: int) -> bool:
        """Whether certainly no value of a type matches both."""
        if name in ("integer", "number"):
            return _ends_before(a, b) or _ends_before(b, a)
        if name in ("string", "array"):
            least, most = ("minLength", "maxLength") if name == "string" else ("minItems", "maxItems")
            return any(one.get(most, float("inf")) < other.get(least, 0) for one, other in ((a, b), (b, a)))
        if name == "object":
            keys = dict.fromkeys((*a.get("required", ()), *b.get("required", ())))
            return any(self._are_disjoint(_property(a, key), _property(b, key), depth=depth + 1) for key in keys)
        return False


def _property(schema: dict[str, Any], key: str) -> Schema:
    """What a schema says of a property; true if that depends on a pattern."""
    if key in schema.get("properties", {}):
        own: Schema = schema["properties"][key]
        return own
    rest: Schema = True if schema.get("patternProperties") else schema.get("additionalProperties", True)
    return rest


def _ends_before(low: dict[str, Any], high: dict[str, Any]) -> bool:
    """Whether the numbers of one schema are all below those of another."""
    infinity = float("inf")
    most = min(low.get("maximum", infinity), low.get("exclusiveMaximum", infinity))
    least = max(high.get("minimum", -infinity), high.get("exclusiveMinimum", -infinity))
    touches = low.get("exclusiveMaximum", infinity) > most and high.get("exclusiveMinimum", -infinity) < least
    return bool(most < least or (most == least and not touches and abs(most) < infinity))


def _listed_values(schema: Schema, *, with_others: bool = False) -> list[Any] | None:
    """The values that a schema lists, as far as its type allows them; None if it lists none.

    Args:
        with_others: also if other keywords forbid some of them.
    """
    if not isinstance(schema, dict):
        return [] if schema is False else None
    if not ("const" in schema or "enum" in schema) or not (with_others or set(schema) <= {"const", "enum", "type"}):
        return None
    values = schema["enum"] if "enum" in schema else [schema["const"]]
    if "enum" in schema and "const" in schema:
        values = [value for value in values if _key(value) == _key(schema["const"])]
    return [value for value in values if type_of(value) in types_of(schema)]


def _in_one_only(lists: list[list[Any]], path: str) -> list[Any]:
    """The values that exactly one of the lists has."""
    by_key = [{_key(value): value for value in values} for values in lists]
    counts: dict[str, int] = {}
    for values in by_key:
        for key in values:
            counts[key] = counts.get(key, 0) + 1
    left = [value for values in by_key for key, value in values.items() if counts[key] == 1]
    if not left:
        raise SchemaError(path, "no value matches exactly one branch")
    return left


def _key(value: Any) -> str:
    """Equal for values that JSON Schema takes for equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: Any) -> Any:
    if isinstance(value, float) and value == int(value):
        return int(value)
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return {key: _canonical(item) for key, item in value.items()} if isinstance(value, dict) else value


def _also_listed(values: list[Any], schema: dict[str, Any]) -> list[Any]:
    """Those values that a schema lists too, or all if it lists none."""
    listed = _listed_values(schema, with_others=True)
    if listed is None:
        return values
    keys = set(map(_key, listed))
    return [value for value in values if _key(value) in keys]


def _may_match(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value may match. False only if it certainly does not."""
    if type_of(value) not in types_of(schema):
        return False
    if isinstance(value, str):
        return bool(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        alone = {"minimum": value, "maximum": value}
        return not (_ends_before(alone, schema) or _ends_before(schema, alone))
    return not isinstance(value, dict) or all(key in value for key in schema.get("required", ()))


def _own_keys(a: Schema, b: Schema, within: frozenset[str]) -> tuple[str, str] | None:
    """For two schemas of objects, a property that only the first requires, and one that only the second does; None if there are
    no such two."""
    if not isinstance(a, dict) or not isinstance(b, dict) or types_of(a) & types_of(b) & within != {"object"}:
        return None
    of_a, of_b = a.get("required", ()), b.get("required", ())
    only_a, only_b = (key for key in of_a if key not in of_b), (key for key in of_b if key not in of_a)
    first, second = next(only_a, None), next(only_b, None)
    return None if first is None or second is None else (first, second)


def _without(schema: Schema, key: str) -> Schema:
    own = schema if isinstance(schema, dict) else {}
    return {**own, "properties": {**own.get("properties", {}), key: False}}
