"""What each kind of bad field gets: a status, and the parameter named."""

from __future__ import annotations

import gc
import time
from typing import Any

import orjson
import pytest
from support.fakes.frontend import FakeFrontend
from support.fakes.gateway import CHAT, COMPLETION, gateway_client

GIVEN_ONCE = [{"role": "user", "content": "Hi"}]
CHAT_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"messages": None}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
    ({"messages": [*GIVEN_ONCE, {"role": "wizard", "content": "Hi"}]}, "messages[1].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [{"role": "user", "content": [{"type": "smell", "smell": ""}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]}, "messages[0].tool_calls[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}]}]},
        "messages[0].content[0].input_audio.data",
    ),
    ({"model": None}, "model"),
    ({"model": 7}, "model"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**32}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_tokens"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 0.0099}, "repetition_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"five": 1}}, "logit_bias"),
    ({"logit_bias": {"4294967296": 1}}, "logit_bias"),
    ({"logit_bias": {"00000000000099999999999": 1}}, "logit_bias"),
    ({"logit_bias": {"0" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"": 1}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"stop": [""]}, "stop[0]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_weather": True}}, "stream_options.include_weather"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 1.1}, "min_p"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"priority": 2**31}, "priority"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
    # Unknown.
    ({"temprature": 1}, "temprature"),
]
COMPLETION_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": ["a", 1]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt[1]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [[1], []]}, "prompt[1]"),
    ({"prompt": [[2**32]]}, "prompt[0][0]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"messages": GIVEN_ONCE}, "messages"),
]
TOKENIZE_ROWS: list[tuple[dict[str, Any], str]] = [
    ({}, "prompt"),
    ({"prompt": "a", "messages": GIVEN_ONCE}, "prompt"),
    ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
    ({"messages": GIVEN_ONCE, "return_token_strs": True}, "return_token_strs"),
    ({"messages": []}, "messages"),
    ({"prompt": 5}, "prompt"),
]


def name_of(row: object) -> str:
    return str(row)[:60]


async def refused(path: str, body: dict[str, Any], param: str) -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post(path, json=body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith(param)
    assert frontend.requests == []


@pytest.mark.parametrize(("fields", "param"), CHAT_ROWS, ids=name_of)
async def test_chat(fields: dict[str, Any], param: str) -> None:
    await refused("/v1/chat/completions", CHAT | fields, param)


@pytest.mark.parametrize(("fields", "param"), COMPLETION_ROWS, ids=name_of)
async def test_completions(fields: dict[str, Any], param: str) -> None:
    await refused("/v1/completions", COMPLETION | fields, param)


@pytest.mark.parametrize(("body", "param"), TOKENIZE_ROWS, ids=name_of)
async def test_tokenize(body: dict[str, Any], param: str) -> None:
    await refused("/tokenize", body, param)


_SIZE = 200_000
_PART = {"type": "text", "text": ""}
_TOOL = {"type": "function", "function": {"name": "find"}}
_CALLS = {"role": "assistant", "tool_calls": [1] * (_SIZE // 2)}
_ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [1] * (_SIZE // 2)}}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": [1] * (_SIZE // 2)}, "messages[0]"),
        ("/v1/chat/completions", {"messages": [*GIVEN_ONCE, *[1] * (_SIZE // 2)]}, "messages[1]"),
        ("/v1/chat/completions", {"messages": GIVEN_ONCE * 4097}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [[]] * (_SIZE // 3)}]}, "messages[0].content[0]"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [_PART] * 1025}]}, "messages[0].content"),
        ("/v1/chat/completions", {"stop_token_ids": [[]] * (_SIZE // 3)}, "stop_token_ids[0]"),
        ("/v1/chat/completions", {"allowed_token_ids": [1] * 65_537}, "allowed_token_ids"),
        ("/v1/chat/completions", {"logit_bias": {str(number): [] for number in range(_SIZE // 10)}}, "logit_bias.0"),
        ("/v1/chat/completions", {"logit_bias": {str(number): 1 for number in range(4097)}}, "logit_bias"),
        ("/v1/chat/completions", {"metadata": {str(number): 1 for number in range(_SIZE // 10)}}, "metadata.0"),
        ("/v1/chat/completions", {f"x{number}": 1 for number in range(_SIZE // 10)}, "x0"),
        ("/v1/chat/completions", {"messages": [{f"x{number}": 1 for number in range(_SIZE // 10)}]}, "messages[0].role"),
        ("/v1/chat/completions", {"tools": [[]] * (_SIZE // 3)}, "tools[0]"),
        ("/v1/chat/completions", {"tools": [_TOOL] * 1025}, "tools"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [1] * (_SIZE // 2)}]},
            "messages[0].tool_calls[0]",
        ),
        ("/v1/chat/completions", {"tools": [_TOOL], "tool_choice": _ALLOWED}, "tool_choice.allowed_tools.tools[0]"),
        ("/v1/chat/completions", {"structured_outputs": {"choice": [1] * (_SIZE // 2)}}, "structured_outputs.choice[0]"),
        ("/v1/completions", {"bad_words": [1] * (_SIZE // 2)}, "bad_words[0]"),
        ("/v1/completions", {"prompt": [1, *[[]] * (_SIZE // 3)]}, "prompt[1]"),
        ("/v1/completions", {"prompt": [[[]] * (_SIZE // 3)]}, "prompt[0][0]"),
        ("/v1/completions", {"prompt": ["", *[[]] * (_SIZE // 3)]}, "prompt[1]"),
        ("/detokenize", {"tokens": [[]] * (_SIZE // 3)}, "tokens[0]"),
    ],
    ids=name_of,
)
async def test_many_faults_cost_no_more_than_few(path: str, fields: dict[str, Any], param: str) -> None:
    base = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}.get(path, {})
    body = orjson.dumps(base | fields)
    async with gateway_client() as client:
        gc.disable()  # what all tests before have left behind is not looked through meanwhile
        try:
            start_s = time.process_time()
            response = await client.post(path, content=body, headers={"content-type": "application/json"})
            elapsed_s = time.process_time() - start_s
        finally:
            gc.enable()
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert len(response.content) < 2000
    assert elapsed_s < 0.5


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_missing_field(missing: str) -> None:
    body = {name: value for name, value in CHAT.items() if name != missing}
    await refused("/v1/chat/completions", body, missing)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none", "functions": None, "function_call": "none", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "modalities": ["text"], "store": False, "service_tier": "auto", "audio": None},
        {"reasoning_effort": "none", "verbosity": "medium", "web_search_options": None, "prompt_cache_retention": "in_memory"},
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"temperature": None, "n": None, "stop": None, "logit_bias": None, "stream": None, "stream_options": None, "seed": None},
    ],
    ids=name_of,
)
async def test_values_that_ask_for_nothing_are_taken(fields: dict[str, Any]) -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
