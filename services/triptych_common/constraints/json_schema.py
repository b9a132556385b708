"""Reads a JSON Schema into the form that llguidance compiles. What cannot be honoured is refused, with its path.

Annotations, unknown keywords and unknown formats are left out, as the specification says. llguidance would refuse them or, if
lenient, would also ignore keywords that constrain. `oneOf` becomes `anyOf` of branches that exclude each other (one_of.py).
References become entries of one flat `$defs`. Paths are JSON pointers, such as `#/properties/age/minimum`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NoReturn
from urllib.parse import unquote

from triptych_common.constraints.json_keywords import (
    FORMATS,
    NO_EFFECT,
    ONE_SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    UNSUPPORTED,
    VALUES,
    Schema,
)

#: Deepest nesting of schemas.
_MAX_DEPTH = 100
#: Most properties of one object, and most targets of references: the time to compile grows with their squares.
_MAX_PROPERTIES = 1500
_MAX_REFERENCES = 1000
#: Most rounds in which it is found out which references end. Each follows chains of references in both directions.
_MAX_ROUNDS = 20
#: Largest bound of a number: larger ones are not exact in the double precision in which they are compared.
_MAX_BOUND = 2**53
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


class SchemaError(ValueError):
    """A schema that cannot be honoured. The message begins with the path of what is at fault."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


@dataclass(eq=False)
class ReadSchema:
    """A schema whose references are names in `defs`."""

    root: Schema
    #: Targets of references, by name.
    defs: dict[str, Schema] = field(default_factory=dict)
    #: id of an object in root or defs -> its path in the text.
    paths: dict[int, str] = field(default_factory=dict)

    def path(self, schema: Schema) -> str:
        """Where a schema stands in the text."""
        return self.paths.get(id(schema), "#")

    def text(self, schema: Schema | None = None) -> str:
        """A schema, by default the whole one, as JSON with all that its references need."""
        schema = self.root if schema is None else schema
        content: dict[str, Any] = schema if isinstance(schema, dict) else ({} if schema else {"anyOf": [False]})
        return json.dumps({**content, "$defs": self.defs} if self.defs else content)


def read_schema(text: str) -> ReadSchema:
    """Read the JSON text of a schema. Raises SchemaError."""
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise SchemaError("#", f"the schema is nested more than {_MAX_DEPTH} levels deep") from error
    except ValueError as error:
        raise SchemaError("#", f"the schema is not valid JSON: {error}") from error
    return _Reader(root).read()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _escaped(part: str) -> str:
    return part.replace("~", "~0").replace("/", "~1")


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


class _Reader:
    def __init__(self, root: Any) -> None:
        self._source = root
        self._read = ReadSchema(True)
        self._names: dict[str, str] = {}  # path of a reference's target -> its name in defs
        self._waiting: list[tuple[str, Any, str]] = []  # name, target and path of references that are not read yet
        self._anchors: dict[str, tuple[Any, str]] | None = None  # found at the first use

    def read(self) -> ReadSchema:
        self._read.root = self._schema(self._source, "#", 0)
        while self._waiting:
            name, target, path = self._waiting.pop()
            self._read.defs[name] = self._schema(target, path, 0)
        return self._read

    def _schema(self, source: Any, path: str, depth: int) -> Schema:
        if isinstance(source, bool):
            return source
        if not isinstance(source, dict):
            raise SchemaError(path, f"a schema must be an object, true or false; given: {_shortened(source)}")
        if depth > _MAX_DEPTH:
            raise SchemaError(path, f"the schema is nested more than {_MAX_DEPTH} levels deep")
        schema: dict[str, Any] = {}
        for keyword, value in source.items():
            self._keyword(schema, source, keyword, value, f"{path}/{_escaped(keyword)}", depth + 1)
        _use_new_tuples(schema)
        _check_min_properties(schema, path)
        self._read.paths[id(schema)] = path
        return schema

    def _keyword(self, schema: dict[str, Any], source: dict[str, Any], keyword: str, value: Any, path: str, depth: int) -> None:
        """Copy one keyword; annotations are left out."""
        if keyword in UNSUPPORTED or (keyword == "if" and ("then" in source or "else" in source)):
            if not any(value is none or (none == {} and value == {}) for none in NO_EFFECT.get(keyword, ())):
                raise SchemaError(path, f"the keyword {keyword!r} cannot be honoured")
        elif keyword in VALUES:
            takes, wanted = VALUES[keyword]
            if not takes(value):
                raise SchemaError(path, f"must be {wanted}; given: {_shortened(value)}")
            if keyword in _BOUNDS and abs(value) > _MAX_BOUND:
                raise SchemaError(path, f"must be between -2^53 and 2^53; given: {_shortened(value)}")
            if keyword == "$ref":
                schema[keyword] = f"#/$defs/{self._name_of(value, path)}"
            elif keyword != "format" or value in FORMATS:
                schema[keyword] = value
        elif keyword in SCHEMA_LISTS or (keyword == "items" and isinstance(value, list)):
            if not isinstance(value, list) or not value:
                raise SchemaError(path, f"must be a list of at least one schema; given: {_shortened(value)}")
            schema[keyword] = [self._schema(item, f"{path}/{index}", depth) for index, item in enumerate(value)]
        elif keyword in ONE_SCHEMA:
            schema[keyword] = self._schema(value, path, depth)
        elif keyword in SCHEMA_MAPS:
            if not isinstance(value, dict):
                raise SchemaError(path, f"must be an object of schemas; given: {_shortened(value)}")
            if len(value) > _MAX_PROPERTIES:
                raise SchemaError(path, f"may have at most {_MAX_PROPERTIES} entries; given: {len(value)}")
            schema[keyword] = {name: self._schema(item, f"{path}/{_escaped(name)}", depth) for name, item in value.items()}

    # -- references -----------------------------------------------------------------------------------------------------------

    def _name_of(self, reference: str, path: str) -> str:
        """The name of a reference's target in defs."""
        target, target_path = self._target(reference, path)
        name = self._names.get(target_path)
        if name is None:
            if len(self._names) >= _MAX_REFERENCES:
                raise SchemaError(path, f"the schema may refer to at most {_MAX_REFERENCES} parts of itself")
            name = self._names[target_path] = f"d{len(self._names)}"
            self._waiting.append((name, target, target_path))
        return name

    def _target(self, reference: str, path: str) -> tuple[Any, str]:
        own_id = self._source.get("$id") or self._source.get("id")
        fragment = reference
        if isinstance(own_id, str) and own_id and reference.startswith(own_id.rstrip("#")):
            fragment = reference[len(own_id.rstrip("#")) :] or "#"
        if not fragment.startswith("#"):
            raise SchemaError(path, f"only references inside of the schema are followed; given: {reference!r}")
        pointer = unquote(fragment[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchor(pointer, path)
        target = self._source
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(part)] if isinstance(target, list) else target[part]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise SchemaError(path, f"the reference {reference!r} leads nowhere") from error
        return target, f"#{pointer}"

    def _anchor(self, name: str, path: str) -> tuple[Any, str]:
        if self._anchors is None:
            self._anchors = {}
            left = [(self._source, "#")]
            while left:
                node, at = left.pop()
                if isinstance(node, dict):
                    if isinstance(node.get("$anchor"), str):
                        self._anchors[node["$anchor"]] = node, at
                    left += [(value, f"{at}/{_escaped(key)}") for key, value in node.items()]
                elif isinstance(node, list):
                    left += [(value, f"{at}/{index}") for index, value in enumerate(node)]
        if name not in self._anchors:
            raise SchemaError(path, f"no part of the schema has the anchor {name!r}")
        return self._anchors[name]


def _use_new_tuples(schema: dict[str, Any]) -> None:
    """Drafts before 2020-12 had a list of `items`, and `additionalItems` for the rest."""
    rest = schema.pop("additionalItems", None)
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if rest is not None:
            schema["items"] = rest


def _check_min_properties(schema: dict[str, Any], path: str) -> None:
    """Names that are not listed may repeat in an output, and count once. So only a required property surely counts."""
    least = schema.get("minProperties", 0)
    if least <= len(set(schema.get("required", ()))):
        schema.pop("minProperties", None)
    elif least > 1:
        raise SchemaError(f"{path}/minProperties", "more properties than the required ones cannot be demanded")


def children(schema: Schema) -> list[Schema]:
    """The schemas that stand directly in a schema."""
    if not isinstance(schema, dict):
        return []
    of_lists = [item for keyword in SCHEMA_LISTS if keyword in schema for item in schema[keyword]]
    of_maps = [item for keyword in SCHEMA_MAPS if keyword in schema for item in schema[keyword].values()]
    return [schema[keyword] for keyword in ONE_SCHEMA if keyword in schema] + of_lists + of_maps


def check_ends(read: ReadSchema) -> None:
    """Refuse a reference that contains itself without end, because no output could ever match. Raises SchemaError."""
    ending: set[str] = set()
    for _ in range(_MAX_ROUNDS):
        num_before = len(ending)
        for name in (*read.defs, *reversed(read.defs)):
            if name not in ending and _ends(read.defs[name], ending):
                ending.add(name)
        if len(ending) == num_before:
            break
    for name, schema in read.defs.items():
        if name not in ending:
            raise SchemaError(read.path(schema), "the schema contains itself without end: no value could match it")


def _ends(schema: Schema, ending: set[str]) -> bool:
    """Whether a value of finite size can match, given the references that are known to end. False matches nothing, but ends."""
    if not isinstance(schema, dict) or "const" in schema or "enum" in schema:
        return True
    if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in ending:
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    if any(keyword in schema and not any(_ends(part, ending) for part in schema[keyword]) for keyword in ("anyOf", "oneOf")):
        return False
    types = schema.get("type", "string")  # without a type, a string matches
    return any(_type_ends(name, schema, ending) for name in ([types] if isinstance(types, str) else types))


def _type_ends(name: str, schema: dict[str, Any], ending: set[str]) -> bool:
    if name == "array":
        first, num_items = schema.get("prefixItems", []), int(schema.get("minItems", 0))
        rest = [schema.get("items", True)] if num_items > len(first) else []
        return all(_ends(item, ending) for item in (*first[:num_items], *rest))
    if name == "object":
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        return all(_ends(properties.get(key, rest), ending) for key in schema.get("required", ()))
    return True
