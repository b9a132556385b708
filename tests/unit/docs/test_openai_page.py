"""docs/openai.md is made from the routes: each field is in the section where it belongs, which says what it takes."""

from __future__ import annotations

import re

import pytest
from docs.openai import FILE, Page, document
from fastapi.routing import APIRoute
from pydantic import BaseModel
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.app import ROUTERS
from triptych_gateway.wire.conversation import Message
from triptych_gateway.wire.schema import NoOp

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute) and route.include_in_schema]


@pytest.fixture(scope="module")
def page() -> str:
    return document()


def section(page: str, heading: str) -> str:
    return page.split(f"\n### {heading}\n")[1].split("\n##")[0]


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Field -> its type and meaning. Required ones have a `*` behind their name."""
    found = re.findall(r"^- (\**)`(\w+)`\**: (.+?)\.(?: (.*))?$", text.split("Refused:")[0], re.MULTILINE)
    return {name + "*" * bool(mark): (kind, meaning) for mark, name, kind, meaning in found}


def names(text: str) -> set[str]:
    return {name.strip("*") for name in rows(text)}


def in_common(text: str) -> set[str]:
    """The fields that an earlier section tells."""
    text = text.split("Refused:")[0]
    return {name for line in re.findall("^As in .*$", text, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}


def refused(text: str) -> set[str]:
    """The fields that are refused, without the values in brackets."""
    return set(re.findall(r"`(\w+)`", re.sub(r" \([^)]*\)", "", text.split("Refused:")[1])))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_is_on_the_page(page: str, route: APIRoute) -> None:
    assert all(f"\n- `{method} {route.path_format}`: " in page for method in route.methods)


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body_field], ids=lambda route: route.path)
def test_every_body_has_a_section(page: str, route: APIRoute) -> None:
    (method,) = route.methods
    name = f"{method} {route.path_format}"
    assert f"\n### {name}\n" in page or re.search(rf"^The same body: .*`{re.escape(name)}`", page, re.MULTILINE)


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("POST /v1/chat/completions", ChatCompletionRequest), ("POST /v1/completions", CompletionRequest), ("Message", Message)],
)
def test_fields_are_in_the_section_where_they_belong(page: str, heading: str, schema: type[BaseModel]) -> None:
    text = section(page, heading)
    no_ops = {name for name, info in schema.model_fields.items() if any(isinstance(mark, NoOp) for mark in info.metadata)}
    assert refused(text) == no_ops
    assert names(text) | in_common(text) == set(schema.model_fields) - no_ops
    assert not names(text) & in_common(text)
    undescribed = [name for name, (_, meaning) in rows(text).items() if not meaning]
    assert undescribed == []


def test_rows_say_type_range_and_meaning(page: str) -> None:
    chat = rows(section(page, "POST /v1/chat/completions"))
    assert chat["top_p"][0] == "number, >0, ≤1"
    assert chat["top_k"][0] == "integer, ≥-1"
    assert chat["seed"][0] == "integer"
    assert chat["messages*"] == ("list (1-4,096) of [Message](#message)", "The conversation.")
    assert chat["service_tier"][0] == '`"auto"`, `"default"`'
    text = section(page, "POST /v1/chat/completions")
    assert "`store` (`false`)" in text
    assert ", `functions` (`[]`), " in text
    assert rows(section(page, "JsonSchemaFormat"))["schema*"][0] == "object"


def test_a_body_of_two_routes_is_told_once(page: str) -> None:
    assert "The same body: `POST /v1/chat/completions/render`." in section(page, "POST /v1/chat/completions")
    assert "### POST /v1/chat/completions/render" not in page


def test_a_field_of_two_routes_is_told_once(page: str) -> None:
    text = section(page, "POST /v1/completions")
    assert "As in [POST /v1/chat/completions](#post-v1chatcompletions): `model`, " in text
    assert {"model", "top_p"} <= in_common(text)
    assert "max_tokens" not in in_common(text), "its meaning is another one here"


def test_objects_of_the_same_name_are_told_apart() -> None:
    ref = {"$ref": "#/components/schemas/a__two__Part"}
    schemas = {
        "Body": {"properties": {"x": ref}},
        "a__two__Part": {"description": "A part.", "properties": {"y": {"type": "string"}}},
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
    paths = {"/p": {"post": {"summary": "Post.", "requestBody": body}}}
    text = Page({"paths": paths, "components": {"schemas": schemas}}).render("{{bodies}}\n{{objects}}")
    assert "- `x`: [Part (two)](#part-two)." in text
    assert "### Part (two)\n\nA part." in text


def test_an_object_with_one_value_is_written_where_it_is_named(page: str) -> None:
    choice = rows(section(page, "POST /v1/messages"))["tool_choice"][0]
    assert choice.startswith("[ToolChoiceAuto](#toolchoiceauto) or ")
    assert choice.endswith(' or `{"type": "none"}`')
    assert "ToolChoiceNone" not in page


def test_the_page_is_up_to_date(page: str) -> None:
    assert FILE.read_text(encoding="utf-8") == page, "run `make docs`"
