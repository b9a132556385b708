"""What the whole text path answers: real services, the real default model."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from support.stack import QUESTION, Stack
from triptych_common.settings import DEFAULT_MODEL

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]
_STORY = {"model": DEFAULT_MODEL, "prompt": "Once upon a time, in a land far away,", "max_tokens": 24}
#: More than one prefill chunk of 512 tokens.
_LONG_PROMPT = " ".join(f"Chapter {number} tells of the {number * 7}th sailor." for number in range(60))


@pytest.fixture
def openai(stack: Stack) -> Iterator[OpenAI]:
    with httpx.Client(trust_env=False) as http, OpenAI(base_url=f"{stack.url}/v1", api_key="none", http_client=http) as client:
        yield client


def chat(stack: Stack, **fields: Any) -> Any:
    return stack.http.post("/v1/chat/completions", json=QUESTION | fields).raise_for_status().json()


def complete(stack: Stack, **fields: Any) -> Any:
    return stack.http.post("/v1/completions", json=_STORY | fields).raise_for_status().json()


def events(stack: Stack, path: str, **body: Any) -> list[Any]:
    """The events of a stream, which must end with [DONE]."""
    response = stack.http.post(path, json={**body, "stream": True}).raise_for_status()
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    *data, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in data]


def many_events(stack: Stack, path: str, more_than: int, **body: Any) -> list[Any]:
    """The events of a stream that has more than this number of them.

    It is asked for again if it has fewer: where a reader is late, as on a busy machine, what was generated meanwhile is one event.
    """
    counts: list[int] = []
    for _ in range(5):
        found = events(stack, path, **body)
        if len(found) > more_than:
            return found
        counts.append(len(found))
    raise AssertionError(f"streams had {counts} events, none more than {more_than}")


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


def test_streamed_or_not_it_is_the_same_answer(stack: Stack, openai: OpenAI) -> None:
    whole = openai.chat.completions.create(**QUESTION).choices[0]  # type: ignore[call-overload]
    assert "Paris" in whole.message.content
    chunks = [chunk.choices[0] for chunk in openai.chat.completions.create(**QUESTION, stream=True)]  # type: ignore[call-overload]
    raw = [chunk["choices"][0] for chunk in many_events(stack, "/v1/chat/completions", 5, **QUESTION)]
    assert raw[0]["delta"]["role"] == "assistant"
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert "".join(chunk["delta"].get("content") or "" for chunk in raw) == whole.message.content
    assert chunks[-1].finish_reason == raw[-1]["finish_reason"] == whole.finish_reason == "stop"
    assert all(chunk["finish_reason"] is None for chunk in raw[:-1])


def test_choices_of_one_prompt(stack: Stack) -> None:
    answer = complete(stack, seed=5, n=3, temperature=1)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts(answer))) == 3
    assert answer["usage"]["completion_tokens"] == 3 * 24
    events_of_all = many_events(stack, "/v1/completions", 30, **_STORY, n=3, seed=5, temperature=1)
    streamed = [event["choices"][0] for event in events_of_all]
    assert {choice["index"] for choice in streamed if choice["finish_reason"]} == {0, 1, 2}


def test_a_stop_string_ends_the_text_before_itself(stack: Stack) -> None:
    (text,) = texts(complete(stack, temperature=0))
    stop = text[len(text) // 2 :][:7]
    answer = complete(stack, temperature=0, stop=[stop, "never said"])["choices"][0]
    assert answer["text"] == text[: text.index(stop)]
    assert (answer["finish_reason"], answer["stop_reason"]) == ("stop", stop)
    streamed = events(stack, "/v1/completions", **_STORY, temperature=0, stop=stop)
    assert "".join(event["choices"][0]["text"] for event in streamed) == answer["text"]


def test_log_probabilities_of_a_chat(stack: Stack) -> None:
    choice = chat(stack, logprobs=True, top_logprobs=3)["choices"][0]
    tokens = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in tokens).removesuffix("<|im_end|>") == choice["message"]["content"]
    for token in tokens:
        tops = [top["logprob"] for top in token["top_logprobs"]]
        assert len(tops) == 3
        assert tops == sorted(tops, reverse=True)
        assert token["logprob"] == tops[0] <= 0  # greedy
        assert bytes(token["bytes"]).decode() == token["token"]


def test_an_echoed_long_prompt_has_all_its_log_probabilities(stack: Stack) -> None:
    answer = complete(stack, prompt=_LONG_PROMPT, echo=True, logprobs=2, max_tokens=4, temperature=0)
    choice, usage = answer["choices"][0], answer["usage"]
    logprobs = choice["logprobs"]
    assert usage["prompt_tokens"] > 600
    assert len(logprobs["tokens"]) == usage["prompt_tokens"] + 4
    assert choice["text"].startswith(_LONG_PROMPT)
    assert "".join(logprobs["tokens"]) == choice["text"]
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert all(2 <= len(top) <= 3 for top in logprobs["top_logprobs"][1:])
    lengths = [len(token) for token in logprobs["tokens"]]
    assert logprobs["text_offset"] == [0, *itertools.accumulate(lengths[:-1])]
    # What is regular gets likely as it repeats.
    values = logprobs["token_logprobs"][1 : usage["prompt_tokens"]]
    assert sum(values[:60]) < sum(values[-60:])


def test_nothing_generated_but_the_prompt_echoed(stack: Stack) -> None:
    answer = complete(stack, echo=True, max_tokens=0)
    assert texts(answer) == [_STORY["prompt"]]
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["choices"][0]["finish_reason"] == "length"


def test_usage_comes_last_in_a_stream(stack: Stack) -> None:
    *chunks, last = events(stack, "/v1/chat/completions", **QUESTION, stream_options={"include_usage": True})
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"] == chat(stack)["usage"]
    assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]


def test_a_repeated_prompt_is_found_in_the_cache(stack: Stack) -> None:
    prompt = "A prompt that nobody asked before. " + _LONG_PROMPT
    first, second = (complete(stack, prompt=prompt, temperature=0) for _ in range(2))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] < 32
    cached, prompt_tokens = second["usage"]["prompt_tokens_details"]["cached_tokens"], second["usage"]["prompt_tokens"]
    assert prompt_tokens - 16 <= cached + 1 <= prompt_tokens
