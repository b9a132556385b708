"""The whole text path in Anthropic's shape: real services, the real default model, the official client."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from anthropic import Anthropic
from support.stack import QUESTION, Stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


@pytest.fixture
def anthropic(stack: Stack) -> Iterator[Anthropic]:
    with (
        httpx2.Client(trust_env=False) as http,
        Anthropic(base_url=stack.url, api_key="none", max_retries=0, http_client=http) as client,
    ):
        yield client


def test_it_is_the_answer_of_chat_completions(stack: Stack, anthropic: Anthropic) -> None:
    said = stack.http.post("/v1/chat/completions", json=QUESTION).raise_for_status().json()
    extra = {"temperature": 0}
    whole = anthropic.messages.create(model=QUESTION["model"], max_tokens=32, messages=QUESTION["messages"], extra_body=extra)
    with anthropic.messages.stream(
        model=QUESTION["model"], max_tokens=32, messages=QUESTION["messages"], extra_body=extra
    ) as stream:
        streamed = stream.get_final_message()
    assert whole.content[0].text == streamed.content[0].text  # type: ignore[union-attr]
    assert whole.content[0].text == said["choices"][0]["message"]["content"]  # type: ignore[union-attr]
    assert whole.stop_reason == streamed.stop_reason == "end_turn"
    assert whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0) == said["usage"]["prompt_tokens"]
    assert whole.usage.output_tokens == said["usage"]["completion_tokens"]
    assert streamed.usage.cache_read_input_tokens


def test_counted_tokens_are_those_of_the_prompt(anthropic: Anthropic) -> None:
    asked = {"model": QUESTION["model"], "messages": QUESTION["messages"], "system": "Answer briefly."}
    counted = anthropic.messages.count_tokens(**asked)
    answer = anthropic.messages.create(**asked, max_tokens=1)
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert answer.stop_reason == "max_tokens"


def test_a_prefilled_answer_goes_on(anthropic: Anthropic) -> None:
    turns = [*QUESTION["messages"], {"role": "assistant", "content": "The capital of France is"}]
    answer = anthropic.messages.create(model=QUESTION["model"], max_tokens=8, messages=turns, extra_body={"temperature": 0})
    assert answer.content[0].text.lstrip().startswith("Paris")  # type: ignore[union-attr]
