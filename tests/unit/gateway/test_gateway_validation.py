"""Messages of validation errors."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.wire.validation import Problem, describe, json_path

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def problem_of(body: dict[str, Any], schema: type = ChatCompletionRequest) -> Problem:
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)
    errors = [error | {"loc": ("body", *error["loc"])} for error in caught.value.errors()]
    return describe(errors, body)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature: should be greater than or equal to 0; given: -1"),
        ({"model": None}, "model: should be a valid string; given: null"),
        ({"colour": 1}, "colour: unknown field"),
        ({"store": True}, "store: not supported; leave it out or send null or false"),
        ({"functions": [1]}, "functions: not supported (deprecated; send tools); leave it out or send null or []"),
        ({"top_logprobs": 1}, "top_logprobs: only allowed when logprobs is true"),
        (
            {"messages": [{"role": "me", "content": ""}]},
            "messages[0].role: should be 'system', 'developer', 'user', 'assistant' or 'tool'; given: 'me'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
            "messages[0].content[0]: type must be one of 'text', 'refusal', 'file', 'image_url', 'input_audio', 'audio_url', "
            "'video_url'; given: 'x'",
        ),
        ({"logit_bias": {"x": 1}}, "logit_bias: each key must be a token id, an integer in [0, 4294967295]; given: 'x'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_messages(fields: dict[str, Any], message: str) -> None:
    assert problem_of(CHAT | fields).message == message


def test_missing_field() -> None:
    assert problem_of({"model": "m"}) == Problem("messages: this field is required", "messages", "missing_required_parameter")


def test_several_problems_are_all_told_and_the_first_is_the_param() -> None:
    problem = problem_of(CHAT | {"temperature": 5, "zork": 1})
    assert problem.param == "temperature"
    assert "; zork: unknown field" in problem.message


def test_long_values_are_cut() -> None:
    problem = problem_of({"model": "m", "prompt": {"x": "y" * 10_000}, "n": "z" * 10_000}, CompletionRequest)
    assert len(problem.message) < 300


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        (("messages", 0, "content", "parts", 0, "text", "text"), "messages[0].content[0].text"),
        (("messages", 0, "content", "parts", 0, "text", "type"), "messages[0].content[0].type"),
        (("messages", 0, "content", "parts"), "messages[0].content"),
        ((), ""),
    ],
)
def test_paths_leave_union_tags_out(loc: tuple[int | str, ...], path: str) -> None:
    body = {"messages": [{"content": [{"type": "text", "text": 5}]}]}
    assert json_path(loc, body) == path
