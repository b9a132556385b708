"""JSON Schemas of growing difficulty, made from a seed: the same ones in each run."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

WORDS = ("name", "age", "city", "tags", "price", "unit", "note", "kind", "left", "right", "id", "size", "café", "a b", 'q"t')
_PATTERNS = ("^[a-z]{2,5}$", "^[A-Z]{3}-[0-9]{4}$", "^(red|green|blue)$", "[0-9]+$", "^x?y*z$", "^\\d{1,3}(\\.\\d{1,3}){3}$", "a.c")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "duration", "color", "int32")


def schemas(count: int = 200, seed: int = 0) -> list[Schema]:
    """Schemas, the easy ones first."""
    return [_Maker(random.Random(f"{seed} {index}")).document(1 + 5 * index // count, index) for index in range(count)]


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def document(self, level: int, index: int) -> Schema:
        """A schema whose value is an object, as of structured outputs, or, at the first level, of any type."""
        rng = self._rng
        schema = self.value(1) if level == 1 and rng.random() < 0.5 else self.object(level)
        if rng.random() < 0.5:
            schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"Schema {index}", **schema}
        if level >= 4:
            schema = self.with_reference(schema, level)
        return schema

    def value(self, level: int) -> Schema:
        kinds: list[Callable[[], Schema]] = [self.string, self.number, self.integer, self.simple]
        if level >= 2:
            kinds += [self.listed, lambda: self.object(level - 1), lambda: self.array(level - 1)]
        if level >= 3:
            kinds += [lambda: self.any_of(level - 1), lambda: self.one_of(level - 1), lambda: self.all_of(level - 1), self.tuple]
        schema = self._rng.choice(kinds)()
        if self._rng.random() < 0.2:
            schema = {**schema, "description": "a value", "x-order": 3, "examples": [None], "default": None}
        return schema

    def simple(self) -> Schema:
        return {"type": self._rng.choice(["boolean", "null", "string", "integer", ["string", "null"], ["integer", "boolean"]])}

    def listed(self) -> Schema:
        values = ["red", "green", 'q"\\\n', "été", 7, -2.5, True, None, [1, "a"], {"k": "v"}]
        if self._rng.random() < 0.3:
            return {"const": self._rng.choice(values)}
        return {"enum": self._rng.sample(values, self._rng.randint(1, 5))}

    def string(self) -> Schema:
        schema: Schema = {"type": "string"}
        match self._rng.randrange(5):
            case 0:
                schema["pattern"] = self._rng.choice(_PATTERNS)
            case 1:
                schema["format"] = self._rng.choice(_FORMATS)
            case 2:
                schema["minLength"] = self._rng.randint(0, 4)
                schema["maxLength"] = schema["minLength"] + self._rng.randint(0, 12)
            case 3:
                schema["maxLength"] = self._rng.randint(0, 20)
        return schema

    def integer(self) -> Schema:
        low = self._rng.randint(-1000, 1000)
        schema: Schema = {"type": "integer"}
        if self._rng.random() < 0.6:
            schema |= {"minimum": low, "maximum": low + self._rng.randint(0, 5000)}
        elif self._rng.random() < 0.5:
            schema |= {"exclusiveMinimum": low, "maximum": low + 10**6}
        if self._rng.random() < 0.2:
            schema = {"type": "integer", "multipleOf": self._rng.randint(2, 12), "minimum": 0, "maximum": 100_000}
        return schema

    def number(self) -> Schema:
        low = self._rng.choice([-10.5, 0, 0.25, 3])
        schema: Schema = {"type": "number"}
        if self._rng.random() < 0.7:
            schema |= {
                self._rng.choice(["minimum", "exclusiveMinimum"]): low,
                self._rng.choice(["maximum", "exclusiveMaximum"]): low + 100,
            }
        return schema

    def object(self, level: int) -> Schema:
        names = self._rng.sample(WORDS, self._rng.randint(1, 2 + level))
        schema: Schema = {"type": "object", "properties": {name: self.value(level) for name in names}}
        schema["required"] = [name for name in names if self._rng.random() < 0.7]
        match self._rng.randrange(4 if level > 1 else 2):
            case 0 | 1:
                schema["additionalProperties"] = False
            case 2:
                schema["additionalProperties"] = self.integer()
        if level >= 3 and self._rng.random() < 0.2:
            schema["patternProperties"] = {"^x_": self.string()}
        return schema

    def array(self, level: int) -> Schema:
        schema: Schema = {"type": "array", "items": self.value(level)}
        if self._rng.random() < 0.7:
            schema["minItems"] = self._rng.randint(0, 3)
            schema["maxItems"] = schema["minItems"] + self._rng.randint(0, 3)
        return schema

    def tuple(self) -> Schema:
        return {
            "type": "array",
            "prefixItems": [self.integer(), self.simple()],
            "items": False,
            "minItems": self._rng.randint(0, 2),
        }

    def any_of(self, level: int) -> Schema:
        return {"anyOf": [self.value(level) for _ in range(self._rng.randint(1, 3))]}

    def one_of(self, level: int) -> Schema:
        match self._rng.randrange(3):
            case 0:  # told apart by a constant
                branches = [self.object(level) for _ in range(self._rng.randint(2, 3))]
                for number, branch in enumerate(branches):
                    branch["properties"] = {"kind": {"const": f"kind {number}"}} | branch["properties"]
                    branch["properties"]["kind"] = {"const": f"kind {number}"}
                    branch["required"] = list(dict.fromkeys(["kind", *branch["required"]]))
                return {"oneOf": branches}
            case 1:  # lists that overlap
                return {"oneOf": [{"enum": ["a", "b", 1]}, {"enum": ["b", "c", 1.0, True]}]}
            case _:  # one property or the other
                properties = {"left": self.integer(), "right": self.string(), "note": self.simple()}
                return {"type": "object", "properties": properties, "oneOf": [{"required": ["left"]}, {"required": ["right"]}]}

    def all_of(self, level: int) -> Schema:
        first = {"type": "object", "properties": {"a": self.value(level)}, "required": ["a"]}
        second = {"type": "object", "properties": {"b": self.value(level)}, "required": ["b"]}
        return {"allOf": [first, second]} if self._rng.random() < 0.5 else {**first, "allOf": [second]}

    def with_reference(self, schema: Schema, level: int) -> Schema:
        """An object with a property that refers to a definition, which may refer to itself."""
        if self._rng.random() < 0.5:
            node = self.object(1)
            node["properties"]["next"] = {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}
            node["properties"]["children"] = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
            node["required"] = ["next"]
        else:
            node = self.value(level - 1)
        schema = {"type": "object", "properties": {}, "required": [], **schema}
        schema["properties"] = {"node": {"$ref": "#/$defs/node"}, **schema["properties"]}
        schema["required"] = ["node", *schema["required"]]
        return {**schema, "$defs": {"node": node}}
