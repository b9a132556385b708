"""Other projects' kinds: their published definitions, and whether an object has the fields that these allow."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema

from support.chart import Object


@functools.cache
def definitions() -> list[Object]:
    """The CustomResourceDefinitions of this folder."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(__file__).parent.glob("*.json"))]


def kinds() -> set[str]:
    return {definition["spec"]["names"]["kind"] for definition in definitions()}


def check(found: Object) -> None:
    """Raises jsonschema.ValidationError if the object does not fit its definition. Only an API server checks rules in CEL."""
    group, _, version = found["apiVersion"].partition("/")
    jsonschema.Draft4Validator(_schema(group, version, found["kind"])).validate(found)


@functools.cache
def _schema(group: str, version: str, kind: str) -> Any:
    for definition in definitions():
        spec = definition["spec"]
        if (spec["group"], spec["names"]["kind"]) == (group, kind):
            (schema,) = [one["schema"]["openAPIV3Schema"] for one in spec["versions"] if one["name"] == version]
            # The API server itself checks these.
            return _closed({**schema, "properties": {**schema["properties"], "metadata": {"type": "object", **_ANY}}})
    raise AssertionError(f"no definition of {kind} in {group}")


_ANY = {"x-kubernetes-preserve-unknown-fields": True}


def _closed(node: Any) -> Any:
    """A schema that takes the named properties only, as the API server does with fieldValidation=Strict."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {key: _closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    if node.get("x-kubernetes-int-or-string"):
        found["type"] = ["integer", "string"]
        found.pop("anyOf", None)
    return found
