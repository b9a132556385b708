"""The official client drives /v1/responses."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import openai
import pydantic
import pytest
from support.drivers.responses import LENGTH, answers, calls, sdk
from support.fakes.frontend import MODEL, Delta, FakeFrontend, fails, says
from triptych.errors import InvalidRequestError, QueueFullError, ServiceUnavailableError
from triptych.v1 import generation_pb2

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Place(pydantic.BaseModel):
    city: str
    country: str


async def test_a_text() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        response = await client.responses.create(
            model=MODEL.name, input="Hi", instructions="Be brief.", metadata={"a": "b"}, user="u", temperature=0.5
        )
    assert response.output_text == "Hello"
    assert response.status == "completed"
    assert response.error is None
    assert response.usage is not None
    assert response.usage.total_tokens == 10
    assert (response.instructions, response.metadata, response.user) == ("Be brief.", {"a": "b"}, "u")
    assert response.temperature == 0.5
    assert [message.role for message in frontend.request.messages] == ["system", "user"]
    assert frontend.output_modes == [generation_pb2.OUTPUT_MODE_FINAL]


def test_the_synchronous_client() -> None:
    async def run() -> None:
        async with sdk(FakeFrontend()) as client:
            synchronous = openai.OpenAI(base_url=str(client.base_url), api_key="any", max_retries=0)

            def drive() -> tuple[str, str]:
                whole = synchronous.responses.create(model=MODEL.name, input="Hi").output_text
                with synchronous.responses.stream(model=MODEL.name, input="Hi") as stream:
                    return whole, stream.get_final_response().output_text

            assert await asyncio.to_thread(drive) == ("Hello", "Hello")
            synchronous.close()

    asyncio.run(run())


async def test_a_stream() -> None:
    frontend = FakeFrontend()
    async with sdk(frontend) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", stream=True)
        events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "Hello"
    assert frontend.output_modes == [generation_pb2.OUTPUT_MODE_DELTA]


async def test_the_streaming_helper_follows_reasoning_text_and_calls() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(reasoning="Hm"), Delta(text="I "), Delta(text="look."), calls("weather", '{"city":"Oslo"}'))
    async with sdk(frontend) as client, client.responses.stream(model=MODEL.name, input="Hi", tools=[WEATHER]) as stream:
        snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
        response = await stream.get_final_response()
    assert snapshots == ["I ", "I look."]
    reasoning, message, call = response.output
    assert (reasoning.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert reasoning.content[0].text == "Hm"
    assert message.phase == "commentary"
    assert call.parsed_arguments == {"city": "Oslo"}


async def test_tools_over_two_turns() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(calls("weather", '{"city":"Oslo"}'), calls("weather", '{"city":"Rome"}', "call_2", 1))
    async with sdk(frontend) as client:
        first = await client.responses.create(model=MODEL.name, input="Weather?", tools=[WEATHER], tool_choice="required")
        assert [item.type for item in first.output] == ["function_call", "function_call"]
        frontend.script = says("Sun.")
        outputs: Any = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
            for item in first.output
            if item.type == "function_call"
        ]
        by_id = await client.responses.create(model=MODEL.name, previous_response_id=first.id, input=outputs, tools=[WEATHER])
        chained = frontend.request
        whole: Any = [{"role": "user", "content": "Weather?"}, *first.output, *outputs]
        resent = await client.responses.create(model=MODEL.name, input=whole, tools=[WEATHER], store=False)
    assert (by_id.output_text, resent.output_text) == ("Sun.", "Sun.")
    assert [message.role for message in chained.messages] == ["user", "assistant", "tool", "tool"]
    assert chained.messages == frontend.request.messages, "resending the items is the same as naming the response"


async def test_parsed_output() -> None:
    frontend = FakeFrontend()
    frontend.script = says('{"city":"Oslo",', '"country":"Norway"}')
    async with sdk(frontend) as client:
        response = await client.responses.parse(model=MODEL.name, input="Where?", text_format=Place)
        assert response.output_parsed == Place(city="Oslo", country="Norway")
        async with client.responses.stream(model=MODEL.name, input="Where?", text_format=Place) as stream:
            streamed = await stream.get_final_response()
    assert streamed.output_parsed == Place(city="Oslo", country="Norway")
    assert '"city"' in frontend.request.options.constraint.json_schema
    assert response.text is not None
    assert response.text.format is not None
    assert response.text.format.type == "json_schema"


@pytest.mark.parametrize("picture", [b"png", b"png" * 20_000], ids=["parsed with the body", "cut out of the body"])
async def test_a_picture(picture: bytes) -> None:
    frontend = FakeFrontend()
    url = "data:image/png;base64," + base64.b64encode(picture).decode()
    content: Any = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    async with sdk(frontend) as client:
        first = await client.responses.create(model=MODEL.name, input=[{"role": "user", "content": content}])
        assert frontend.request.messages[0].content[1].media.data == picture
        [asked] = (await client.responses.input_items.list(first.id)).data
        assert asked.to_dict()["content"][1]["image_url"] == url  # type: ignore[index]
        await client.responses.create(model=MODEL.name, input="And now?", previous_response_id=first.id)
    assert frontend.request.messages[0].content[1].media.data == picture, "the picture was stored with its message"


async def test_log_probabilities() -> None:
    frontend = FakeFrontend()
    entry = generation_pb2.TokenLogprob(token="A", utf8=b"A", logprob=-0.5)
    frontend.script = answers(Delta(text="A", logprobs=[entry]))
    async with sdk(frontend) as client:
        response = await client.responses.create(model=MODEL.name, input="Hi", include=["message.output_text.logprobs"])
    [message] = response.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert [(one.token, one.logprob) for one in part.logprobs] == [("A", -0.5)]


async def test_a_cut_answer() -> None:
    frontend = FakeFrontend()
    frontend.script = answers(Delta(text="Hel", finish_reason=LENGTH))
    async with sdk(frontend) as client:
        response = await client.responses.create(model=MODEL.name, input="Hi", max_output_tokens=1)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert frontend.request.options.sampling.max_tokens == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequestError("options.sampling.top_p must be less", field="options.sampling.top_p"), openai.BadRequestError),
        (QueueFullError("full"), openai.RateLimitError),
        (ServiceUnavailableError("away"), openai.InternalServerError),
    ],
)
async def test_errors_before_the_first_event(stream: bool, error: Exception, expected: type[openai.APIStatusError]) -> None:
    frontend = FakeFrontend()
    frontend.script = fails(error)  # type: ignore[arg-type]
    async with sdk(frontend) as client:
        with pytest.raises(expected) as caught:
            await client.responses.create(model=MODEL.name, input="Hi", stream=stream)  # type: ignore[call-overload]
    assert set(caught.value.body) == {"message", "type", "param", "code"}  # type: ignore[arg-type]
    if expected is openai.BadRequestError:
        assert caught.value.param == "top_p"


async def test_an_error_within_a_stream() -> None:
    frontend = FakeFrontend()
    frontend.script = fails(ServiceUnavailableError("the engine died"), after=2)
    async with sdk(frontend) as client:
        stream = await client.responses.create(model=MODEL.name, input="Hi", stream=True)
        created = await anext(stream)
        assert created.type == "response.created"
        events = [event async for event in stream]
        assert events[-2].type == "error"
        assert events[-2].message == "the engine died"
        assert events[-1].type == "response.failed"
        stored = await client.responses.retrieve(created.response.id)
    assert stored.status == "failed"
    assert stored.error is not None
    assert stored.error.message == "the engine died"


async def test_a_wrong_model() -> None:
    async with sdk(FakeFrontend()) as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(model="other", input="Hi")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_parameter"),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0]", "invalid_value"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "https://a/b"}]}]},
            "input[0].content[0].file_url",
            "unsupported_parameter",
        ),
        ({"colour": 1}, "colour", "unknown_parameter"),
        ({"include": ["everything"]}, "include[0]", "invalid_value"),
        ({"input": []}, "input", "invalid_request"),
        ({"background": True, "store": False}, "background", "invalid_value"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(fields: dict[str, Any], param: str, code: str) -> None:
    async with sdk(FakeFrontend()) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/responses", body={"model": MODEL.name, "input": "Hi", **fields}, cast_to=object)
    assert (caught.value.param, caught.value.code) == (param, code), caught.value.message
