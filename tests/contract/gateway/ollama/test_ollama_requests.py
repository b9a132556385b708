"""What the frontend gets of Ollama's requests."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from support.drivers.ollama import HI, able, async_client
from support.fakes.frontend import MODEL, FakeFrontend, fails
from support.fakes.gateway import gateway_client
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

ASK = {"role": "user", "content": "Weather?"}


def called(name: str, **arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": arguments}}


async def chat_of(*messages: dict[str, Any], **fields: Any) -> generation_pb2.ChatRequest:
    """The frontend's request for these messages, as the official client sends them."""
    frontend = able(reasoning=True)
    async with async_client(frontend) as client:
        await client.chat(MODEL.name, list(messages), **fields)
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    return frontend.request


async def test_the_client_leaves_ids_out_and_results_find_their_calls() -> None:
    calls = [called("time"), called("get_weather", city="Rome"), called("get_weather", city="Oslo")]
    turns = [
        ASK,
        {"role": "assistant", "thinking": "I look.", "tool_calls": calls},
        {"role": "tool", "content": "sunny", "tool_name": "get_weather"},
        {"role": "tool", "content": "12:00"},
        {"role": "tool", "content": "rain", "tool_name": "get_weather"},
    ]
    request = await chat_of(*turns)
    _, assistant, *results = request.messages
    assert assistant.reasoning == "I look."
    assert [(call.name, call.arguments) for call in assistant.tool_calls] == [
        ("time", "{}"),
        ("get_weather", '{"city":"Rome"}'),
        ("get_weather", '{"city":"Oslo"}'),
    ]
    ids = [call.id for call in assistant.tool_calls]
    assert len(set(ids)) == 3
    assert [(turn.name, turn.tool_call_id) for turn in results] == [
        ("get_weather", ids[1]),
        ("time", ids[0]),
        ("get_weather", ids[2]),
    ]


async def test_ids_that_are_sent_are_kept() -> None:
    frontend = FakeFrontend()
    turns = [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "index": 0, **called("f")}, {"id": "b", **called("f")}]},
        {"role": "tool", "content": "1", "tool_call_id": "b"},
        {"role": "tool", "content": "2"},
        # Of a history that was cut.
        {"role": "tool", "content": "3", "tool_name": "g"},
    ]
    async with gateway_client(frontend) as client:
        response = await client.post("/api/chat", json=HI | {"messages": turns, "stream": False})
    assert response.status_code == 200, response.text
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    results = frontend.request.messages[2:]
    assert [(turn.name, turn.tool_call_id) for turn in results] == [("", "b"), ("f", "a"), ("g", "")]
    assert not results[2].HasField("tool_call_id")


@pytest.mark.parametrize("num_bytes", [3, 40_000], ids=["small", "large enough to be cut out of the body"])
async def test_images_stand_before_the_text(num_bytes: int) -> None:
    frontend = FakeFrontend()
    files = [bytes([number]) * num_bytes for number in (1, 2)]
    message = {"role": "user", "content": "What?", "images": [base64.b64encode(file).decode() for file in files]}
    async with async_client(frontend) as client:
        await client.chat(MODEL.name, [message])
        chat = frontend.request
        await client.generate(MODEL.name, "What?", images=files)
    for request in (chat, frontend.request):
        assert isinstance(request, generation_pb2.ChatRequest)
        *images, text = request.messages[0].content
        assert text.text == "What?"
        assert {item.media.modality for item in images} == {common_pb2.MODALITY_IMAGE}
        sent = [item.media.data or frontend.uploads[item.media.upload_id] for item in images]
        assert sent == files


async def test_what_looks_like_images_in_a_tool_is_left_alone() -> None:
    frontend, long = FakeFrontend(), "x" * 5000
    tool = {"type": "function", "function": {"name": "f", "parameters": {"images": [long, long]}}}
    asked = {"messages": [ASK, {"role": "assistant", "tool_calls": [called("f", images=[long])]}, {"role": "tool", "content": "1"}]}
    async with gateway_client(frontend) as client:
        response = await client.post("/api/chat", json=HI | asked | {"tools": [tool], "format": {"images": [long]}})
    assert response.status_code == 200, response.text
    assert isinstance(frontend.request, generation_pb2.ChatRequest)
    assert frontend.request.tools[0].parameters_json_schema == f'{{"images":["{long}","{long}"]}}'
    assert frontend.request.messages[1].tool_calls[0].arguments == f'{{"images":["{long}"]}}'
    assert frontend.request.options.constraint.json_schema == f'{{"images":["{long}"]}}'


async def test_an_answer_goes_on_with_the_assistants_last_words() -> None:
    started = {"role": "assistant", "content": "It is"}
    assert (await chat_of(ASK, started)).continue_final_message
    assert not (await chat_of(ASK)).continue_final_message
    assert not (await chat_of(ASK, {"role": "assistant", "content": "I look.", "tool_calls": [called("f")]})).continue_final_message


async def test_thinking() -> None:
    assert not (await chat_of(ASK)).HasField("reasoning")
    assert (await chat_of(ASK, think="high")).reasoning.effort == "high"
    assert (await chat_of(ASK, think=False)).reasoning.effort == "none"
    turned_on = await chat_of(ASK, think=True)
    # A level would be refused by models that always think.
    assert not turned_on.HasField("reasoning")
    assert turned_on.template_kwargs == to_struct({"enable_thinking": True, "thinking": True})


async def test_limits_are_those_of_the_context() -> None:
    request = await chat_of(ASK, options={"num_predict": -1, "seed": -1})
    assert not request.options.sampling.HasField("max_tokens")
    assert not request.options.sampling.HasField("seed")
    assert request.options.clamp_max_tokens
    assert request.drop_oldest_messages
    assert (await chat_of(ASK, format="json")).options.constraint.json_object
    assert not (await chat_of(ASK, format="")).options.HasField("constraint")


async def test_raw_prompts_are_completions() -> None:
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        await client.generate(MODEL.name, "<image>Once", raw=True, images=[b"hi"], options={"num_predict": 5})
    request = frontend.request
    assert isinstance(request, generation_pb2.CompleteRequest)
    assert (request.text, request.options.sampling.max_tokens, request.media[0].data) == ("<image>Once", 5, b"hi")


async def test_prompts_with_a_suffix_are_completions() -> None:
    frontend = FakeFrontend()
    async with async_client(frontend) as client:
        await client.generate(MODEL.name, "def f():", suffix="return x")
        await client.generate(MODEL.name, suffix="return x")
    given = [(request.text, request.suffix) for request in frontend.requests]  # type: ignore[union-attr]
    assert given == [("def f():", "return x"), ("", "return x")]


#: The contract's field at fault, the body that has it, and its name there.
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("options.sampling.temperature", {}, "options.temperature"),
    ("options.sampling.max_tokens", {}, "options.num_predict"),
    ("sampling.repetition_penalty", {}, "options.repeat_penalty"),
    ("options.stop[0]", {}, "options.stop[0]"),
    ("options.constraint.json_schema", {}, "format"),
    ("reasoning.effort", {"think": "low"}, "think"),
    ("messages[0].content[1].media", {"messages": [{"role": "user", "images": ["aGk=", "aGk="]}]}, "messages[0].images[1]"),
    ("messages[0].reasoning", {"messages": [{"role": "user", "content": "x", "thinking": "y"}]}, "messages[0].thinking"),
    (
        "tools[0].parameters_json_schema",
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools[0].function.parameters",
    ),
]


@pytest.mark.parametrize(("field", "fields", "told"), FAULTS)
async def test_errors_have_the_clients_names(field: str, fields: dict[str, Any], told: str) -> None:
    frontend = able(reasoning=True)
    frontend.script = fails(InvalidRequestError(f"{field}: is wrong", field=field))
    async with gateway_client(frontend) as client:
        response = await client.post("/api/chat", json=HI | fields)
    assert (response.status_code, response.json()) == (400, {"error": f"{told}: is wrong"})


@pytest.mark.parametrize(
    ("field", "told"),
    [("messages[0].content[0].media", "images[0]"), ("messages[0]", "prompt"), ("messages", "prompt")],
)
async def test_errors_of_a_prompt_have_the_clients_names(field: str, told: str) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InvalidRequestError(f"{field}: is wrong", field=field))
    async with gateway_client(frontend) as client:
        response = await client.post("/api/generate", json={"model": MODEL.name, "prompt": "x", "images": ["aGk="]})
    assert (response.status_code, response.json()) == (400, {"error": f"{told}: is wrong"})
