"""Structured outputs through the official openai client, and vLLM's form of them."""

from __future__ import annotations

from enum import Enum
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from support.fakes.frontend import MODEL, FakeFrontend, Script, says, text_deltas
from support.fakes.gateway import CHAT, COMPLETION, gateway_client
from support.sdk import openai_client
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2

MESSAGES: Any = CHAT["messages"]
ROUTES = (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION))
SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"enum": [1, 2.5, None]}}}
SCHEMA_TEXT = orjson.dumps(SCHEMA).decode()


class Mood(Enum):
    GOOD = "good"


class Person(BaseModel):
    """What the client parses the answer into."""

    name: str
    mood: Mood
    friends: list[str]


ANSWER = ['{"name": "A', 'nn", "mood": "good"', ', "friends": []}']


async def test_parsed_into_the_clients_model() -> None:
    frontend = FakeFrontend()
    frontend.script = says(*ANSWER)
    async with openai_client(frontend) as client:
        answer = await client.chat.completions.parse(model=MODEL.name, messages=MESSAGES, response_format=Person)
    assert answer.choices[0].message.parsed == Person(name="Ann", mood=Mood.GOOD, friends=[])
    schema = orjson.loads(frontend.request.options.constraint.json_schema)
    assert list(schema["properties"]) == ["name", "mood", "friends"]
    assert schema["additionalProperties"] is False


async def test_parsed_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = says(*ANSWER)
    async with (
        openai_client(frontend) as client,
        client.chat.completions.stream(model=MODEL.name, messages=MESSAGES, response_format=Person) as stream,
    ):
        parsed = [event.parsed async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Person(name="Ann", mood=Mood.GOOD, friends=[])
    assert {"name": "Ann", "mood": "good"} in parsed


@pytest.mark.parametrize(("path", "base"), ROUTES)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "description": "y"}}},
            {"json_schema": SCHEMA_TEXT},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"json_schema": SCHEMA_TEXT}),
        ({"structured_outputs": {"json": '{ "type": "null" }'}}, {"json_schema": '{ "type": "null" }'}),
        ({"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}, {"json_object": True}),
        ({"structured_outputs": {"regex": "[ab]+", "json": None, "json_object": False}}, {"regex": "[ab]+"}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"choice": {"values": ["yes", "no"]}}),
        ({"structured_outputs": {"grammar": 'start: "x"'}}, {"grammar": 'start: "x"'}),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "text"}}, {"regex": "a"}),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_constraint(path: str, base: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=base | fields)
    assert response.status_code == 200, response.text
    options = frontend.request.options
    assert options.HasField("constraint") == (expected is not None)
    if expected is not None:
        kinds = {key: common_pb2.StringList(**value) if key == "choice" else value for key, value in expected.items()}
        assert options.constraint == common_pb2.Constraint(**kinds)


@pytest.mark.parametrize(("path", "base"), ROUTES)
@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'text', 'json_object' or 'json_schema'"),
        ({"response_format": {"type": "structural_tag"}}, "response_format", "structural tags are not supported"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "is required with the type json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": {}}}},
            "response_format.json_schema",
            "is not allowed with the type text",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "send exactly one of json, regex, choice, grammar, json_object"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "given: regex, choice"),
        ({"structured_outputs": {"regex": "a", "structural_tag": "x"}}, "structured_outputs.structural_tag", "send a grammar"),
        (
            {"structured_outputs": {"json": {}, "disable_any_whitespace": False}},
            "structured_outputs.disable_any_whitespace",
            "at most one space",
        ),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "cannot be sent together with response_format",
        ),
        ({"guided_json": {}}, "guided_json", "send structured_outputs"),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_refused_by_name(path: str, base: dict[str, Any], fields: dict[str, Any], param: str, message: str) -> None:
    async with gateway_client() as client:
        response = await client.post(path, json=base | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]


async def test_a_schema_is_nested_as_deeply_as_its_text_can_be() -> None:
    frontend = FakeFrontend()
    deep: dict[str, Any] = {}
    for _ in range(199):
        deep = {"x": deep}
    async with gateway_client(frontend) as client:
        taken = await client.post("/v1/completions", json=COMPLETION | {"structured_outputs": {"json": deep}})
        refused = await client.post("/v1/completions", json=COMPLETION | {"structured_outputs": {"json": {"x": deep}}})
    assert taken.status_code == 200
    assert orjson.loads(frontend.request.options.constraint.json_schema) == deep
    assert refused.status_code == 400
    assert "nested too deeply; at most 200 levels" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs.json"),
    ],
)
async def test_an_error_about_the_schema_names_the_clients_field(fields: dict[str, Any], param: str) -> None:
    frontend = FakeFrontend()
    field = "options.constraint.json_schema"
    script = Script([text_deltas("x")], error=InvalidRequestError(f"{field}: /properties/z: no such type", field=field))
    frontend.script = script
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.json()["error"]["param"] == param
    assert response.json()["error"]["message"].startswith(f"{param}: /properties/z")
