"""POST /v1/responses/input_tokens: each field has its effect on the prompt that is counted, or is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import openai
import pytest
from openai.types.responses import input_token_count_params
from support.drivers.responses import sdk
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.responses.schema import InputTokensRequest
from triptych_gateway.wire.schema import NoOp

BODY: dict[str, Any] = {"model": MODEL.name, "input": "Hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
#: Field -> (value, further fields, what the frontend's request shows of it).
HONOURED: dict[str, tuple[Any, dict[str, Any], Callable[[Any], bool]]] = {
    "input": ("Other", {}, lambda chat: chat.messages[0].content[0].text == "Other"),
    "instructions": ("Be brief.", {}, lambda chat: chat.messages[0].role == "system"),
    "tools": ([TOOL], {}, lambda chat: [tool.name for tool in chat.tools] == ["f"]),
    "tool_choice": ("none", {"tools": [TOOL]}, lambda chat: chat.tool_choice.mode == generation_pb2.ToolChoice.MODE_NONE),
    "parallel_tool_calls": (False, {"tools": [TOOL]}, lambda chat: chat.HasField("parallel_tool_calls")),
    "reasoning": ({"effort": "high"}, {}, lambda chat: chat.reasoning.effort == "high"),
}
#: Fields that other tests send.
ELSEWHERE = {"model", "previous_response_id", "text", "truncation"}
REFUSED = sorted(
    name for name, info in InputTokensRequest.model_fields.items() if any(isinstance(part, NoOp) for part in info.metadata)
)
PATH = "/v1/responses/input_tokens"


def test_every_field_is_in_one_of_the_tables() -> None:
    assert set(InputTokensRequest.model_fields) == {*HONOURED, *REFUSED, *ELSEWHERE}
    assert set(InputTokensRequest.model_fields) >= get_type_hints(input_token_count_params.InputTokenCountParams).keys()


@pytest.mark.parametrize("name", HONOURED)
async def test_a_field_has_its_effect(name: str) -> None:
    value, further, shows = HONOURED[name]
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        for body in (BODY | further | {name: value}, BODY | further):
            response = await client.post(PATH, json=body)
            assert response.status_code == 200, response.text
    with_it, without = (request.chat for request in frontend.preprocessed)
    assert shows(with_it)
    assert not shows(without)


async def test_instructions_alone_are_counted_and_nothing_is_not() -> None:
    async with gateway_client() as client:
        counted = await client.post(PATH, json={"model": MODEL.name, "instructions": "Be brief."})
        nothing = await client.post(PATH, json={"model": MODEL.name})
    assert counted.status_code == 200, counted.text
    assert (nothing.status_code, nothing.json()["error"]["message"]) == (400, "input: at least one item is needed")


@pytest.mark.parametrize("name", REFUSED)
async def test_a_field_is_refused_by_its_name(name: str) -> None:
    async with gateway_client() as client:
        error = (await client.post(PATH, json=BODY | {name: "x"})).json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


async def test_the_official_client_counts_a_conversation() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        first = await client.responses.create(model=MODEL.name, input="Hi")
        counted = await client.responses.input_tokens.count(model=MODEL.name, input="And?", previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.input_tokens.count(model="other", input="Hi")
        with pytest.raises(openai.NotFoundError):
            await client.responses.input_tokens.count(model=MODEL.name, previous_response_id="resp_x")
    # One token per byte of "Hi", "Hello" and "And?".
    assert (counted.input_tokens, counted.object) == (11, "response.input_tokens")
    assert caught.value.code == "model_not_found"
    assert len(frontend.requests) == 1, "nothing was generated"


async def test_what_is_too_long_is_counted_as_it_would_be_truncated() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        for truncation in ("disabled", "auto"):
            body = BODY | {"input": "x" * 3000, "truncation": truncation}
            # The frontend leaves out what does not fit.
            assert (await client.post(PATH, json=body)).json()["input_tokens"] == 3000
            assert frontend.preprocessed[-1].chat.drop_oldest_messages == (truncation == "auto")


async def test_pictures_are_sent_with_the_request() -> None:
    frontend = FakeFrontend()
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "QUJD" * 2000}
    async with gateway_client(frontend) as client:
        response = await client.post(PATH, json=BODY | {"input": [{"role": "user", "content": [picture]}]})
    assert response.status_code == 200, response.text
    assert frontend.preprocessed[0].chat.messages[0].content[0].media.data == b"ABC" * 2000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice"),
    ],
)
async def test_bad_input(fields: dict[str, Any], param: str) -> None:
    async with gateway_client() as client:
        response = await client.post(PATH, json=BODY | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param), response.text
