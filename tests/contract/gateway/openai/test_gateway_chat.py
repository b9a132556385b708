"""POST /v1/chat/completions in front of a fake frontend, over real gRPC and, where it streams, over real HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import orjson
import pytest
from support.fakes.frontend import MODEL, FakeFrontend, Script, fails, says, text_deltas
from support.fakes.gateway import CHAT, events_of, gateway_client
from support.sdk import openai_client
from triptych.errors import ContextLengthError, InternalError
from triptych.v1 import common_pb2, generation_pb2
from triptych_gateway.apis.chat.schema import ChatCompletion

MESSAGES: Any = CHAT["messages"]


async def test_whole_answer() -> None:
    frontend = FakeFrontend()
    async with openai_client(frontend) as client:
        answer = await client.chat.completions.create(model=MODEL.name, messages=MESSAGES)
    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == MODEL.name
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 3, 10)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 2
    assert answer.id == f"chatcmpl-{frontend.request_ids[0]}"


async def test_whole_answer_travels_in_one_response_per_choice() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        await client.post("/v1/chat/completions", json=CHAT)
    assert frontend.output_modes[-1] == generation_pb2.OUTPUT_MODE_FINAL
    assert frontend.num_responses == 1


async def test_streamed_answer() -> None:
    frontend = FakeFrontend()
    frontend.script = says("One", " tw", "o é 😀\n\ndata: x")
    async with openai_client(frontend) as client:
        stream = await client.chat.completions.create(model=MODEL.name, messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", None, None, None]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "One two é 😀\n\ndata: x"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all("usage" not in chunk.model_fields_set for chunk in chunks)


async def test_streamed_usage_comes_last_and_is_null_before() -> None:
    async with gateway_client() as client:
        body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
        response = await client.post("/v1/chat/completions", json=body)
    *chunks, usage, done = events_of(response.content)
    assert done == b"[DONE]"
    assert all(orjson.loads(chunk)["usage"] is None for chunk in chunks)
    last = orjson.loads(usage)
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {
            "cached_tokens": 2,
            "image_tokens": 0,
            "audio_tokens": 0,
            "video_tokens": 0,
            "cached_media_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


async def test_stream_is_not_cached_or_buffered_on_its_way() -> None:
    async with gateway_client() as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"


async def test_deltas_without_news_are_not_sent() -> None:
    frontend = FakeFrontend()
    frontend.script = says("a", "", "", "b", "")
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
    choices = [orjson.loads(event)["choices"][0] for event in events_of(response.content)[:-1]]
    assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]


async def test_each_delta_is_sent_when_it_comes() -> None:
    frontend = FakeFrontend()
    gate = asyncio.Semaphore(0)
    frontend.script = says("a", "b", gate=gate)
    async with openai_client(frontend) as client:
        creating = asyncio.create_task(client.chat.completions.create(model=MODEL.name, messages=MESSAGES, stream=True))
        gate.release()
        stream = await creating
        chunks = aiter(stream)
        assert (await anext(chunks)).choices[0].delta.role == "assistant"
        assert (await anext(chunks)).choices[0].delta.content == "a"
        gate.release()
        assert (await anext(chunks)).choices[0].delta.content == "b"
        gate.release()
        assert [chunk async for chunk in chunks] == []


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices(stream: bool) -> None:
    frontend = FakeFrontend()
    length = common_pb2.FINISH_REASON_LENGTH
    frontend.script = Script([text_deltas("a", "b"), text_deltas("c", "d", "e", index=1, finish_reason=length)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"n": 2, "stream": stream})
    assert frontend.request.options.n == 2
    if not stream:
        choices = response.json()["choices"]
        assert [(choice["message"]["content"], choice["finish_reason"]) for choice in choices] == [
            ("ab", "stop"),
            ("cde", "length"),
        ]
        return
    texts, reasons = ["", ""], [None, None]
    for event in events_of(response.content)[:-1]:
        (choice,) = orjson.loads(event)["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"]
    assert (texts, reasons) == (["ab", "cde"], ["stop", "length"])


@pytest.mark.parametrize(
    ("matched", "stop_reason"), [({"stop_text": "\n"}, "\n"), ({"stop_token_id": 0}, 0), ({}, None)], ids=["text", "token", "eos"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_stop_reason_names_what_matched(stream: bool, matched: dict[str, Any], stop_reason: object) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("a", **matched)])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
    answer = orjson.loads(events_of(response.content)[-2]) if stream else response.json()
    assert answer["choices"][0]["stop_reason"] == stop_reason


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs(stream: bool) -> None:
    frontend = FakeFrontend()
    top = [generation_pb2.TopLogprob(token="é", utf8="é".encode(), logprob=-0.5)]
    top.append(generation_pb2.TopLogprob(token="x", utf8=b"x", logprob=float("-inf")))
    entry = generation_pb2.TokenLogprob(token="é", utf8="é".encode(), logprob=-0.5, top=top)
    frontend.script = Script([text_deltas("é", logprobs=[entry])])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream, "logprobs": True, "top_logprobs": 2})
    answer = orjson.loads(events_of(response.content)[1]) if stream else response.json()
    chosen = {"token": "é", "logprob": -0.5, "bytes": [195, 169]}
    alternatives = [chosen, {"token": "x", "logprob": -9999.0, "bytes": [120]}]
    assert answer["choices"][0]["logprobs"] == {"content": [chosen | {"top_logprobs": alternatives}], "refusal": None}
    assert frontend.request.options.sampling.logprobs == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids(stream: bool) -> None:
    frontend = FakeFrontend()
    frontend.script = Script([text_deltas("ab", token_ids=[5, 6])])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream, "return_token_ids": True})
    answer = orjson.loads(events_of(response.content)[1]) if stream else response.json()
    assert answer["choices"][0]["token_ids"] == [5, 6]


async def test_answers_are_what_the_openapi_document_says() -> None:
    frontend = FakeFrontend()
    entry = generation_pb2.TokenLogprob(token="a", utf8=b"a", logprob=-1)
    frontend.script = Script([text_deltas("a", logprobs=[entry], token_ids=[1])])
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"logprobs": True, "return_token_ids": True})
    ChatCompletion.model_validate_json(response.content, strict=True, extra="forbid")


async def test_error_before_the_first_event_has_its_status() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ContextLengthError("2100 tokens are more than 2048", field="messages", limit=2048, value=2100))
    async with openai_client(frontend) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL.name, messages=MESSAGES, stream=True)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"
    assert "2100" in caught.value.message


async def test_wrong_model_name_is_what_frameworks_look_for() -> None:
    async with openai_client(FakeFrontend()) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-17", messages=MESSAGES)
    assert (caught.value.code, caught.value.param, caught.value.type) == ("model_not_found", "model", "invalid_request_error")


async def test_error_after_the_first_event_is_an_event() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InternalError("the engine died"), after=2)
    async with openai_client(frontend) as client:
        stream = await client.chat.completions.create(model=MODEL.name, messages=MESSAGES, stream=True)
        chunks = aiter(stream)
        texts = [(await anext(chunks)).choices[0].delta.content for _ in range(3)]
        with pytest.raises(openai.APIError, match="the engine died"):
            await anext(chunks)
    assert texts == ["", "a", "b"]


async def test_error_event_is_followed_by_done() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(InternalError("the engine died"), after=1)
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT | {"stream": True})
        metrics = (await client.get("/metrics")).text
    *_, error, done = events_of(response.content)
    assert orjson.loads(error)["error"] == {
        "message": "the engine died",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert done == b"[DONE]"
    assert 'triptych_gateway_stream_errors_total{code="internal_error",route="/v1/chat/completions"} 1.0' in metrics


async def test_request_id_is_taken_given_back_and_passed_on() -> None:
    frontend = FakeFrontend()
    async with gateway_client(frontend) as client:
        response = await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "mine-1"})
        made = await client.post("/v1/chat/completions", json=CHAT, headers={"x-request-id": "not usable"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "chatcmpl-mine-1"
    assert frontend.request_ids == ["mine-1", made.headers["x-request-id"]]
    assert made.headers["x-request-id"] != "not usable"
