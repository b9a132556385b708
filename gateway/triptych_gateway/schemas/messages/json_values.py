"""JSON objects that are passed on as text: schemas and arguments of tools, schemas of answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from triptych_gateway.schemas.common import refuse

#: Nesting depth of objects and arrays. A schema of nested objects takes two levels per object. orjson writes at most 254 levels.
MAX_DEPTH = 100


def _check_depth(value: Any) -> Any:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for parent in level
            if isinstance(parent, dict | list)
            for item in (parent.values() if isinstance(parent, dict) else parent)
        ]
        if not level:
            return value
    raise refuse(f"nested too deeply; at most {MAX_DEPTH} levels are allowed")


DeepJsonObject = Annotated[dict[str, Any], AfterValidator(_check_depth)]
JsonSchema = Annotated[DeepJsonObject, Field(description="A JSON schema. The order of its properties is kept.")]
