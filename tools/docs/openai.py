"""Writes docs/openai.md from the gateway's routes: `make docs`. With `--check` it only reports whether it is up to date.

The lists come from the OpenAPI document of the application, so a route is on the page as soon as it is registered. The prose
around them is in `openai_page.txt` beside this file, in which `{{routes}}`, `{{bodies}}` and `{{objects}}` stand for the lists.
What several sections have alike is told once, in the first one; the others name the fields and link to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from triptych_gateway.app import create_app
from triptych_gateway.settings import GatewaySettings

from .page import ROOT, write_or_check

FILE = ROOT / "docs" / "openai.md"
TEMPLATE = Path(__file__).with_name("openai_page.txt")

Json = dict[str, Any]
#: Name, type and meaning of a field.
Field = tuple[str, str, str]
_REF = "#/components/schemas/"
_METHODS = ("get", "post", "delete", "put", "patch")
#: So many fields that a section has in common with an earlier one are told there only, and so is one with a longer meaning.
_FEWEST_IN_COMMON = 2
_LONG_MEANING = 6


def document() -> str:
    """The whole page."""
    return Page(create_app(GatewaySettings()).openapi()).render(TEMPLATE.read_text(encoding="utf-8"))


class Page:
    """Lists of the routes, the fields of their bodies, and the objects in those.

    Args:
        openapi: the OpenAPI document.
    """

    def __init__(self, openapi: Json) -> None:
        self._paths: Json = openapi["paths"]
        self._schemas: Json = openapi["components"]["schemas"]
        #: Objects in bodies, in the order in which they are named first.
        self._objects: dict[str, None] = {}
        #: A field -> the section that was first to have it.
        self._told: dict[Field, str] = {}

    def render(self, template: str) -> str:
        """The template with the lists in it."""
        bodies = "\n".join(self._bodies())
        parts = {"routes": "\n".join(self._routes()), "bodies": bodies, "objects": "\n".join(self._object_sections())}
        for name, text in parts.items():
            template = template.replace(f"{{{{{name}}}}}", text.strip())
        return template

    def _operations(self) -> Iterator[tuple[str, str, Json]]:
        for path, operations in self._paths.items():
            for method in _METHODS:
                if method in operations:
                    yield method.upper(), path, operations[method]

    def _routes(self) -> Iterator[str]:
        for method, path, operation in self._operations():
            about = operation.get("description") or operation.get("summary", "")
            yield f"- `{method} {path}`: {_sentence(about)}"

    def _bodies(self) -> Iterator[str]:
        #: The schema's name of a body -> the routes that take it.
        takers: dict[str, list[str]] = {}
        #: Route -> the schema of a body that no other route takes. A route that reads forms has it in the operation.
        forms: dict[str, Json] = {}
        for method, path, operation in self._operations():
            for name in self._body_names(operation):
                takers.setdefault(name, []).append(f"{method} {path}")
            for content in operation.get("requestBody", {}).get("content", {}).values():
                if "properties" in content["schema"]:
                    forms[f"{method} {path}"] = content["schema"]
        bodies = {routes[0]: (self._schemas[name], routes[1:]) for name, routes in takers.items()}
        bodies |= {route: (schema, []) for route, schema in forms.items()}
        for method, path, _ in self._operations():
            if (route := f"{method} {path}") in bodies:
                schema, others = bodies[route]
                yield f"### {route}\n"
                if others:
                    yield f"The same body: {', '.join(f'`{other}`' for other in others)}.\n"
                yield from self._fields(schema, route)

    def _body_names(self, operation: Json) -> Iterator[str]:
        contents = operation.get("requestBody", {}).get("content", {}).values()
        names = (content["schema"].get("$ref", "").removeprefix(_REF) for content in contents)
        # Content types of the same route may have the same fields.
        yield from dict.fromkeys(name for name in names if name)

    def _object_sections(self) -> Iterator[str]:
        told: set[str] = set()
        while names := [name for name in self._objects if name not in told]:
            for name in names:
                told.add(name)
                schema = self._schemas[name]
                yield f"### {_title(name)}\n"
                yield f"{_one_line(schema.get('description', ''))}{_constants(schema)}\n"
                yield from self._fields(schema, _title(name))

    def _fields(self, schema: Json, section: str) -> Iterator[str]:
        """The fields that are honoured, and those that are refused."""
        fields: Json = {name: field for name, field in schema.get("properties", {}).items() if not _is_constant(field)}
        honoured = {name: field for name, field in fields.items() if "x-unsupported" not in field}
        rows = {name: self._field(name, field, schema) for name, field in honoured.items()}
        common = self._in_common(rows, section)
        shared = {name for names in common.values() for name in names}
        if own := [row for name, row in rows.items() if name not in shared]:
            yield from _list(own)
            yield ""
        if common:
            alike = (f"[{other}](#{_anchor(other)}): {', '.join(f'`{name}`' for name in names)}" for other, names in common.items())
            yield f"As in {'; '.join(alike)}.\n"
        if refused := {name: field for name, field in fields.items() if name not in honoured}:
            yield f"Refused: {', '.join(_refusal(name, field) for name, field in refused.items())}.\n"

    def _field(self, name: str, field: Json, schema: Json) -> Field:
        mark = "**" if name in schema.get("required", []) else ""
        return f"{mark}`{name}`{mark}", self._type(field), _one_line(_description(field))

    def _in_common(self, rows: dict[str, Field], section: str) -> dict[str, list[str]]:
        """The fields that earlier sections have, too, by section, where that is shorter."""
        common: dict[str, list[str]] = {}
        for name, row in rows.items():
            if (first := self._told.setdefault(row, section)) != section:
                common.setdefault(first, []).append(name)
        return {
            first: names
            for first, names in common.items()
            if len(names) >= _FEWEST_IN_COMMON or len(rows[names[0]][2].split()) > _LONG_MEANING
        }

    def _type(self, schema: Json) -> str:
        """A readable type, with its range. Objects are links to their sections."""
        if "$ref" in schema:
            return self._link(schema["$ref"].removeprefix(_REF))
        for union in ("anyOf", "oneOf"):
            if union in schema:
                kinds = [self._type(option) for option in schema[union] if option.get("type") != "null"]
                # A union of many objects is a list of links.
                joint = ", " if len(kinds) > 2 and all(kind.startswith("[") for kind in kinds) else " or "
                return joint.join(dict.fromkeys(kinds))
        if "const" in schema:
            return _code(schema["const"])
        if "enum" in schema:
            return ", ".join(_code(value) for value in schema["enum"] if value is not None)
        kind = schema.get("type", "any")
        if kind == "array":
            return f"list{_size(schema, 'Items')} of {self._type(schema['items'])}"
        if kind == "object":
            values = schema.get("additionalProperties")
            of = f" of {self._type(values)}" if isinstance(values, dict) and values else ""
            return f"object{_size(schema, 'Properties')}{of}"
        return kind + (_size(schema, "Length", " characters") if kind == "string" else _range(schema))

    def _link(self, name: str) -> str:
        if "properties" not in self._schemas[name]:
            return self._type(self._schemas[name])
        fields: Json = self._schemas[name]["properties"]
        if all(_is_constant(field) for field in fields.values()):
            return _code({field: fields[field]["const"] for field in fields})
        self._objects.setdefault(name)
        return f"[{_title(name)}](#{_anchor(_title(name))})"


def _title(name: str) -> str:
    """The heading of an object. Classes of the same name are told apart by their modules: `a__b__Name` is `Name (b)`."""
    *modules, own = name.split("__")
    return f"{own} ({modules[-1]})" if modules else own


def _anchor(heading: str) -> str:
    """The anchor that GitHub gives to a heading."""
    return re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower()


def _is_constant(field: Json) -> bool:
    return "const" in field and not field.get("description")


def _constants(schema: Json) -> str:
    """The fields that can have one value only, in words."""
    constants = {name: field["const"] for name, field in schema.get("properties", {}).items() if _is_constant(field)}
    missing = {name: "" if name in schema.get("required", []) else ", or left out" for name in constants}
    return "".join(f" `{name}`: {_code(value)}{missing[name]}." for name, value in constants.items())


def _list(fields: Sequence[Field]) -> Iterator[str]:
    for name, kind, meaning in fields:
        yield f"- {name}: {kind}." + (f" {meaning}" if meaning else "")


def _refusal(name: str, field: Json) -> str:
    """A refused field, with the values that are taken beside null. An answer says why the others are not."""
    taken = ", ".join(_code(value) for value in field["enum"] if value is not None)
    return f"`{name}`" + (f" ({taken})" if taken else "")


def _description(field: Json) -> str:
    """The description of a field, or of the type inside it."""
    inside = (option for union in ("anyOf", "oneOf") for option in field.get(union, ()))
    return field.get("description") or next((text for option in inside if (text := option.get("description"))), "")


def _size(schema: Json, what: str, unit: str = "") -> str:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}")
    if most is not None:
        return f" ({_number(least)}-{_number(most)}{unit})" if least else f" (≤{_number(most)}{unit})"
    # One of something is what "not empty" means.
    return " (not empty)" if least == 1 else f" (≥{_number(least)}{unit})" if least else ""


def _range(schema: Json) -> str:
    """The bounds of a number, but for those that 32 or 64 bits have anyway."""
    least, most = schema.get("minimum"), schema.get("maximum")
    above = schema.get("exclusiveMinimum")
    least = None if least is not None and least in (-(2**31), -(2**63)) else least
    most = None if most is not None and (most in (2**31 - 1, 2**32 - 1) or most > 2**62) else most
    if least is not None and most is not None:
        return f", {_number(least)}-{_number(most)}" if least >= 0 else f", {_number(least)} to {_number(most)}"
    bounds = ((">", above), ("≥", least), ("≤", most))
    return "".join(f", {sign}{_number(bound)}" for sign, bound in bounds if bound is not None)


def _number(value: float) -> str:
    """A number with separators."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _code(value: Any) -> str:
    return f"`{json.dumps(value)}`"


def _sentence(text: str) -> str:
    """The first sentence of a text. The OpenAPI document has the others."""
    return re.split(r"(?<=\.) (?=[A-Z])", _one_line(text))[0]


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    write_or_check(document(), FILE, __doc__, "routes")
