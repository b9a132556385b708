"""What becomes of a request of /v1/responses in the contract."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import orjson
import pytest
from pydantic import ValidationError
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.file_inputs import FileLoader
from triptych_gateway.apis.responses.history import ResponseInput, read_items
from triptych_gateway.apis.responses.items import STORED_ITEMS
from triptych_gateway.apis.responses.opaque import new_response_id, output_item_id, response_of_item, seal
from triptych_gateway.apis.responses.request import chat_request
from triptych_gateway.apis.responses.schema import ResponseRequest
from triptych_gateway.apis.responses.service import response_call
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import MediaFile
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway
from triptych_gateway.wire.field_names import FieldNames

ToolChoice = generation_pb2.ToolChoice
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {"b": {}, "a": {}}}}


async def converted(
    history: list[dict[str, Any]] | None = None, **fields: Any
) -> tuple[generation_pb2.ChatRequest, list[MediaFile], FieldNames]:
    body = ResponseRequest.model_validate({"model": "m", "input": "Hi", **fields})

    async def no_lookup(item_id: str) -> dict[str, Any]:
        raise AssertionError(item_id)

    items, _ = await read_items(body.input, "resp_1", no_lookup)
    return chat_request(body, items, STORED_ITEMS.validate_python(history or []), FileParts(b"{}"))


async def chat(history: list[dict[str, Any]] | None = None, **fields: Any) -> generation_pb2.ChatRequest:
    return (await converted(history, **fields))[0]


def roles(request: generation_pb2.ChatRequest) -> list[tuple[str, str]]:
    return [(message.role, "".join(part.text for part in message.content)) for message in request.messages]


async def test_a_text_is_a_message_of_the_user() -> None:
    assert roles(await chat(instructions="Be brief.")) == [("system", "Be brief."), ("user", "Hi")]


async def test_items_of_the_assistant_become_one_turn() -> None:
    request = await chat(
        input=[
            {"role": "developer", "content": "Use tools."},
            {"role": "user", "content": [{"type": "input_text", "text": "Weather"}, {"type": "input_text", "text": "?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sun"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
            {"role": "assistant", "content": "Sun and rain.", "phase": "final_answer"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No more."}]},
        ]
    )
    assert roles(request) == [
        ("developer", "Use tools."),
        ("user", "Weather?"),
        ("assistant", "I look."),
        ("tool", "sun"),
        ("tool", "rain"),
        ("assistant", "Sun and rain."),
        ("assistant", "No more."),
    ]
    turn = request.messages[2]
    assert turn.reasoning == "Hm."
    assert [(call.id, call.name, call.arguments) for call in turn.tool_calls] == [
        ("c1", "weather", '{"a":1}'),
        ("c2", "weather", "{}"),
    ]
    assert [message.tool_call_id for message in request.messages[3:5]] == ["c1", "c2"]


async def test_earlier_responses_come_first_without_their_instructions() -> None:
    history = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}]
    assert roles(await chat(history, instructions="New.")) == [
        ("system", "New."),
        ("user", "One"),
        ("assistant", "Two"),
        ("user", "Hi"),
    ]


async def test_reasoning_is_read_from_whatever_there_is() -> None:
    items = [{"type": "reasoning", "summary": [], "encrypted_content": seal("sealed")}, {"role": "assistant", "content": "A"}]
    assert (await chat(input=items)).messages[0].reasoning == "sealed"
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}]
    assert (await chat(input=items)).messages[0].reasoning == "short"


@pytest.mark.parametrize("content", ["gAAAA", "tpv1.!", seal("x")[:-6], "tpv1.", "tpv1.Zm9v"])
async def test_opaque_content_of_others_is_refused(content: str) -> None:
    with pytest.raises(InvalidRequestError, match="cannot read it") as caught:
        await chat(input=[{"type": "reasoning", "summary": [], "encrypted_content": content}])
    assert caught.value.field == "input[0].encrypted_content"


def test_opaque_content_is_no_shorter_than_its_text() -> None:
    """A request could unpack to more memory than its body has reserved otherwise."""
    assert len(seal("x" * (1 << 20))) >= 1 << 20


async def test_compaction_joins_the_instructions() -> None:
    request = await chat(
        instructions="Be brief.", input=[{"type": "compaction", "encrypted_content": seal("S.")}, {"role": "user", "content": "Hi"}]
    )
    assert roles(request) == [("system", "Be brief.\n\nThe conversation before this point, in short:\nS."), ("user", "Hi")]


async def test_pictures() -> None:
    picture = "data:image/png;base64," + base64.b64encode(b"png").decode()
    request, files, names = await converted(
        instructions="Look.",
        input=[
            {"role": "user", "content": "One"},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What?"},
                    {"type": "input_image", "image_url": picture, "detail": "low"},
                    {"type": "input_image", "image_url": "https://h/x.png", "detail": "auto"},
                    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
                    {"type": "input_video", "video_url": "https://h/x.mp4"},
                ],
            },
        ],
    )
    parts = request.messages[2].content
    assert [file.content for file in files] == [b"png", b"RIFF"]
    files[0].item.data = b"seen"
    assert parts[1].media.data == b"seen", "it is the item in the request, not a copy"
    assert parts[1].media.detail == "low"
    assert (parts[2].media.url, parts[2].media.detail) == ("https://h/x.png", "auto")
    assert parts[3].media.modality == common_pb2.MODALITY_AUDIO
    assert parts[4].media.modality == common_pb2.MODALITY_VIDEO
    assert names["messages[2].content[2].media"] == "input[1].content[2].image_url"
    assert names["messages[1]"] == "input[0]"


async def test_a_picture_that_is_not_base64_is_named_as_the_client_named_it() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,?"}
    with pytest.raises(InvalidRequestError) as caught:
        await chat(input=[{"role": "user", "content": [part]}])
    assert caught.value.field == "input[0].content[0].image_url"
    assert caught.value.message.startswith("input[0].content[0].image_url: ")


async def test_options() -> None:
    request = await chat(
        max_output_tokens=5,
        temperature=0.5,
        top_p=0.9,
        presence_penalty=1,
        seed=3,
        top_k=-1,
        stop=["x"],
        truncation="auto",
        top_logprobs=2,
    )
    sampling = request.options.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.top_k, sampling.logprobs) == (5, 0.5, 3, 0, 2)
    assert list(request.options.stop) == ["x"]
    assert request.drop_oldest_messages
    assert (await chat(include=["message.output_text.logprobs"])).options.sampling.logprobs == 0
    plain = await chat(truncation="disabled")
    assert not plain.HasField("drop_oldest_messages")
    assert not plain.options.sampling.HasField("logprobs")
    assert not plain.HasField("tool_choice")
    assert not plain.HasField("reasoning")


async def test_formats_keep_the_order_of_the_schema() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    request = await chat(text={"format": {"type": "json_schema", "name": "n", "schema": schema}})
    assert request.options.constraint.json_schema == orjson.dumps(schema).decode()
    assert (await chat(text={"format": {"type": "json_object"}})).options.constraint.json_object
    assert not (await chat(text={"format": {"type": "text"}, "verbosity": "medium"})).options.HasField("constraint")


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ("auto", ToolChoice.MODE_AUTO, []),
        ("none", ToolChoice.MODE_NONE, []),
        ("required", ToolChoice.MODE_REQUIRED, []),
        ({"type": "function", "name": "weather"}, ToolChoice.MODE_REQUIRED, ["weather"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "weather"}]},
            ToolChoice.MODE_REQUIRED,
            ["weather"],
        ),
        ({"type": "allowed_tools", "tools": [{"type": "function", "name": "weather"}]}, ToolChoice.MODE_AUTO, ["weather"]),
    ],
)
async def test_tools(choice: Any, mode: int, names: list[str]) -> None:
    request = await chat(tools=[WEATHER | {"strict": True}], tool_choice=choice, parallel_tool_calls=False)
    [tool] = request.tools
    assert (tool.name, tool.strict) == ("weather", True)
    assert tool.parameters_json_schema == orjson.dumps(WEATHER["parameters"]).decode()
    assert (request.tool_choice.mode, list(request.tool_choice.allowed_names)) == (mode, names)
    assert request.HasField("parallel_tool_calls")
    assert not request.parallel_tool_calls


async def test_reasoning_effort() -> None:
    assert (await chat(reasoning={"effort": "low", "summary": None})).reasoning.effort == "low"


async def test_text_is_sent_at_once_unless_it_is_streamed() -> None:
    body = ResponseRequest.model_validate({"model": "m", "input": "Hi"})
    given = ResponseInput("resp_1", STORED_ITEMS.validate_python([{"role": "user", "content": "Hi"}]))
    loader = FileLoader(Gateway(GatewaySettings()), "", lambda num_bytes: asyncio.sleep(0))
    for is_streamed, mode in ((False, generation_pb2.OUTPUT_MODE_FINAL), (True, generation_pb2.OUTPUT_MODE_DELTA)):
        call, _ = await response_call(body, given, FileParts(b"{}"), "id", loader, is_streamed=is_streamed)
        assert call.calls[0].output_mode == mode


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "function", "name": "other"}, "tools": [WEATHER]},
        {"tool_choice": "required"},
        {"tools": [WEATHER, WEATHER]},
        {"background": True, "store": False},
        {"input": None},
        {"n": 2},
        {"stream_options": {"include_usage": False}, "stream": True},
        {"reasoning": {"summary": "concise"}},
        {"text": {"verbosity": "low"}},
        {"service_tier": "flex"},
        {"metadata": {"k": "v" * 513}},
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ResponseRequest.model_validate({"model": "m", "input": "Hi", **fields})


def test_an_items_id_leads_to_its_response() -> None:
    response_id = new_response_id()
    assert response_of_item(output_item_id("msg", response_id, 12)) == response_id
    assert response_of_item("msg_1") is None
    assert response_of_item(response_id) is None
