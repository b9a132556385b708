"""/v1/responses with a real model, driven by the official client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from support.builders.media import a_picture, an_image_file
from support.stack import QUESTION, Stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
MODEL = QUESTION["model"]


class City(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.http.base_url}/v1".replace("//v1", "/v1"), api_key="any", max_retries=0) as made:
        yield made


def test_a_conversation(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="What is a cat?", temperature=0, max_output_tokens=8)
    assert first.status in ("completed", "incomplete")
    assert first.usage is not None
    assert first.usage.output_tokens <= 8
    with client.responses.stream(model=MODEL, input="What is a cat?", temperature=0, max_output_tokens=8) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert streamed == first.output_text
    second = client.responses.create(model=MODEL, input="Why?", previous_response_id=first.id, max_output_tokens=4)
    whole: Any = [{"role": "user", "content": "What is a cat?"}, *first.output, {"role": "user", "content": "Why?"}]
    resent = client.responses.create(model=MODEL, input=whole, max_output_tokens=4, store=False)
    assert second.usage is not None
    assert resent.usage is not None
    assert second.usage.input_tokens == resent.usage.input_tokens > first.usage.input_tokens


def test_a_schema_is_kept(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="A city?", text_format=City, temperature=0, max_output_tokens=64)
    assert isinstance(parsed.output_parsed, City)


def test_a_picture(client: openai.OpenAI) -> None:
    url = "data:image/png;base64," + base64.b64encode(an_image_file("PNG", a_picture())).decode()
    content: Any = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": url, "detail": "auto"}]
    answer = client.responses.create(model=MODEL, input=[{"role": "user", "content": content}], max_output_tokens=4)
    assert answer.to_dict()["triptych"]["media"][0]["modality"] == "image"  # type: ignore[index]


def test_log_probabilities(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="Hi", top_logprobs=2, max_output_tokens=3, temperature=0)
    [message] = answer.output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert all(len(token.top_logprobs) == 2 for token in part.logprobs)
    assert len(part.logprobs) == 3


@pytest.mark.long
def test_compaction(client: openai.OpenAI) -> None:
    short = client.responses.compact(model=MODEL, input="Hi. I am Alice.")
    window: Any = [*short.output, {"role": "user", "content": "Who am I?"}]
    assert client.responses.create(model=MODEL, input=window, max_output_tokens=4).usage is not None


def test_a_background_response(client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="Hi", background=True, stream=True, max_output_tokens=8)
    events = list(stream)
    assert events[-1].type in ("response.completed", "response.incomplete")
    stored = client.responses.retrieve(events[-1].response.id)
    assert json.loads(stored.to_json())["output"] == json.loads(events[-1].response.to_json())["output"]
