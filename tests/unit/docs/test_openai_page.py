"""docs/openai.md is made from the routes: each field is in the table where it belongs, and its row says what it takes."""

from __future__ import annotations

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


def rows(text: str) -> dict[str, list[str]]:
    """Field -> its cells."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells for cells in lines}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_is_on_the_page(page: str, route: APIRoute) -> None:
    assert all(f"| `{method} {route.path_format}` |" in page for method in route.methods)


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("POST /v1/chat/completions", ChatCompletionRequest), ("POST /v1/completions", CompletionRequest), ("Message", Message)],
)
def test_fields_are_in_the_table_where_they_belong(page: str, heading: str, schema: type[BaseModel]) -> None:
    honoured, _, refused = section(page, heading).partition("| refused |")
    no_ops = {name for name, info in schema.model_fields.items() if any(isinstance(mark, NoOp) for mark in info.metadata)}
    assert set(rows(refused)) == no_ops
    assert set(rows(honoured)) == set(schema.model_fields) - no_ops
    undescribed = [name for name, cells in rows(honoured).items() if not cells[2]]
    assert undescribed == []


def test_rows_say_type_range_and_meaning(page: str) -> None:
    chat = rows(section(page, "POST /v1/chat/completions"))
    assert chat["top_p"][1] == "number, above 0, to 1"
    assert chat["top_k"][1] == "integer, -1 to 2^32 - 1"
    assert chat["seed"][1] == "integer, -2^63 to 2^63 - 1"
    assert chat["messages"][1:] == ["list (1 to 4,096) of [Message](#message)", "Required. The conversation."]
    assert chat["service_tier"][1] == '`"auto"`, `"default"`'
    assert chat["store"][1:] == ["`null`, `false`", ""]
    assert chat["functions"][1:] == ["`null`, `[]`", "deprecated; send tools"]
    assert rows(section(page, "JsonSchemaFormat"))["schema"][1] == "object"


def test_a_body_of_two_routes_is_told_once(page: str) -> None:
    assert "The body is that of `/v1/chat/completions`." in section(page, "POST /v1/chat/completions/render")


def test_objects_of_the_same_name_are_told_apart() -> None:
    ref = {"$ref": "#/components/schemas/a__two__Part"}
    schemas = {
        "Body": {"properties": {"x": ref}},
        "a__two__Part": {"description": "A part.", "properties": {"y": {"type": "string"}}},
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Body"}}}}
    paths = {"/p": {"post": {"summary": "Post.", "requestBody": body}}}
    text = Page({"paths": paths, "components": {"schemas": schemas}}).render("{{bodies}}\n{{objects}}")
    assert "| `x` | [Part (two)](#part-two) |" in text
    assert "### Part (two)\n\nA part." in text


def test_the_page_is_up_to_date(page: str) -> None:
    assert FILE.read_text(encoding="utf-8") == page, "run `make docs`"
