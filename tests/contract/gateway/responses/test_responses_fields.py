"""Each field of a request of /v1/responses has its effect, or is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest
from openai.types.responses import response_compact_params, response_create_params
from support.fakes.frontend import MODEL, FakeFrontend
from support.fakes.gateway import gateway_client
from triptych.v1 import generation_pb2
from triptych_gateway.apis.responses.schema import CompactRequest, ResponseRequest
from triptych_gateway.wire.schema import NoOp

BODY: dict[str, Any] = {"model": MODEL.name, "input": "Hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
#: The frontend's request and the response object.
Check = Callable[[Any, Any], bool]


def _sent(path: str, value: Any) -> Check:
    """A check that the frontend got the value."""

    def check(request: Any, _: Any) -> bool:
        for name in path.split("."):
            request = getattr(request, name)
        return bool(request == value)

    return check


def _echoed(name: str, value: Any) -> Check:
    return lambda _, response: response[name] == value


_S = "options.sampling."
#: Field -> (value, further fields, check).
HONOURED: dict[str, tuple[Any, dict[str, Any], Check]] = {
    "model": (MODEL.name, {}, _sent("model", MODEL.name)),
    "input": ("Other", {}, lambda request, _: request.messages[0].content[0].text == "Other"),
    "instructions": ("Be brief.", {}, lambda request, _: request.messages[0].role == "system"),
    "metadata": ({"a": "b"}, {}, _echoed("metadata", {"a": "b"})),
    "user": ("u", {}, _echoed("user", "u")),
    "safety_identifier": ("s", {}, _echoed("safety_identifier", "s")),
    "prompt_cache_key": (
        "k",
        {},
        lambda request, response: request.options.affinity_key == "k" and response["prompt_cache_key"] == "k",
    ),
    "store": (False, {}, _echoed("store", False)),
    "background": (True, {}, _echoed("background", True)),
    "max_output_tokens": (3, {}, _sent(_S + "max_tokens", 3)),
    "max_tool_calls": (2, {}, _echoed("max_tool_calls", 2)),
    "tools": ([TOOL], {}, lambda request, response: [tool.name for tool in request.tools] == ["f"] and len(response["tools"]) == 1),
    "tool_choice": ("none", {"tools": [TOOL]}, _sent("tool_choice.mode", generation_pb2.ToolChoice.MODE_NONE)),
    "parallel_tool_calls": (False, {"tools": [TOOL]}, lambda request, _: request.HasField("parallel_tool_calls")),
    "text": ({"format": {"type": "json_object"}}, {}, _sent("options.constraint.json_object", True)),
    "structured_outputs": ({"regex": "a+"}, {}, _sent("options.constraint.regex", "a+")),
    "reasoning": ({"effort": "high"}, {}, _sent("reasoning.effort", "high")),
    "top_logprobs": (2, {}, _sent(_S + "logprobs", 2)),
    "include": (["message.output_text.logprobs"], {}, lambda request, _: request.options.sampling.HasField("logprobs")),
    "truncation": ("auto", {}, _sent("drop_oldest_messages", True)),
    "truncate_prompt_tokens": (5, {}, _sent("options.truncate_prompt_tokens", 5)),
    "chat_template_kwargs": ({"a": "b"}, {}, lambda request, _: dict(request.template_kwargs) == {"a": "b"}),
    "temperature": (0.5, {}, _sent(_S + "temperature", 0.5)),
    "top_p": (0.5, {}, _sent(_S + "top_p", 0.5)),
    "presence_penalty": (0.5, {}, _sent(_S + "presence_penalty", 0.5)),
    "frequency_penalty": (0.5, {}, _sent(_S + "frequency_penalty", 0.5)),
    "repetition_penalty": (1.5, {}, _sent(_S + "repetition_penalty", 1.5)),
    "logit_bias": ({"3": 1}, {}, lambda request, _: request.options.sampling.logit_bias[3] == 1),
    "seed": (4, {}, _sent(_S + "seed", 4)),
    "stop": (["x"], {}, _sent("options.stop", ["x"])),
    "top_k": (4, {}, _sent(_S + "top_k", 4)),
    "min_p": (0.5, {}, _sent(_S + "min_p", 0.5)),
    "min_tokens": (2, {}, _sent(_S + "min_tokens", 2)),
    "ignore_eos": (True, {}, _sent(_S + "ignore_eos", True)),
    "stop_token_ids": ([5], {}, _sent(_S + "stop_token_ids", [5])),
    "allowed_token_ids": ([5], {}, _sent(_S + "allowed_token_ids", [5])),
    "bad_words": (["bad"], {}, _sent("options.bad_words", ["bad"])),
    "skip_special_tokens": (False, {}, lambda request, _: request.options.HasField("skip_special_tokens")),
    "include_stop_str_in_output": (True, {}, _sent("options.include_stop_in_output", True)),
    "priority": (3, {}, _sent("options.priority", 3)),
    "cache_salt": ("s", {}, _sent("options.cache_salt", "s")),
}
#: Fields that other tests send.
ELSEWHERE = {"stream", "stream_options", "previous_response_id", "mm_processor_kwargs", "client_metadata"}
REFUSED = sorted(
    name for name, info in ResponseRequest.model_fields.items() if any(isinstance(part, NoOp) for part in info.metadata)
)


def test_every_field_is_in_one_of_the_tables() -> None:
    assert set(ResponseRequest.model_fields) == {*HONOURED, *REFUSED, *ELSEWHERE}


@pytest.mark.parametrize(
    ("params", "schema"),
    [
        (response_create_params.ResponseCreateParamsNonStreaming, ResponseRequest),
        (response_create_params.ResponseCreateParamsStreaming, ResponseRequest),
        (response_compact_params.ResponseCompactParams, CompactRequest),
    ],
)
def test_no_field_of_the_client_is_unknown(params: Any, schema: Any) -> None:
    assert get_type_hints(params).keys() <= schema.model_fields.keys()


@pytest.mark.parametrize("name", HONOURED)
async def test_a_field_has_its_effect(name: str) -> None:
    value, further, check = HONOURED[name]
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        plain = (await client.post("/v1/responses", json=BODY | further)).json()
        without = frontend.request
        response = await client.post("/v1/responses", json=BODY | further | {name: value})
        assert response.status_code == 200, response.text
        await frontend.arrivals.get()
        await frontend.arrivals.get()
    assert check(frontend.request, response.json())
    assert name == "model" or not check(without, plain), "the check does not see the field"


@pytest.mark.parametrize("name", REFUSED)
async def test_a_field_is_refused_by_its_name(name: str) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/responses", json=BODY | {name: {"asks": "for something"}})
        accepted = await client.post("/v1/responses", json=BODY | {name: None})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert accepted.status_code == 200


async def test_labels_of_the_client_change_nothing() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        answer = await client.post("/v1/responses", json=BODY | {"client_metadata": {"thread_id": "x"}})
        assert answer.status_code == 200, answer.text
        assert "client_metadata" not in answer.json()
        assert (await client.post("/v1/responses", json=BODY | {"client_metadata": "x"})).status_code == 400


async def test_options_of_a_processor_need_media() -> None:
    part = {"type": "input_image", "image_url": "https://h/x.png"}
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        options = {"mm_processor_kwargs": {"fps": 1}}
        refused = await client.post("/v1/responses", json=BODY | options)
        assert refused.json()["error"]["param"] == "mm_processor_kwargs"
        taken = await client.post("/v1/responses", json=BODY | options | {"input": [{"role": "user", "content": [part]}]})
        assert taken.status_code == 200
    assert frontend.request.messages[0].content[0].media.processor_options["fps"] == 1


@pytest.mark.parametrize("options", [{"include_obfuscation": True}, {"include_usage": True}, {"continuous_usage_stats": True}])
async def test_options_of_a_stream_are_refused(options: dict[str, Any]) -> None:
    async with gateway_client() as client:
        body = BODY | {"stream": True, "stream_options": options}
        error = (await client.post("/v1/responses", json=body)).json()["error"]
        assert error["param"] == f"stream_options.{next(iter(options))}"
        alone = await client.post("/v1/responses", json=BODY | {"stream_options": {"include_obfuscation": False}})
    assert alone.json()["error"]["param"] == "stream_options"
