"""Keyword options and OpenAI's dictionaries become requests."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pydantic
import pytest
from google.protobuf import json_format
from triptych import chat_request, complete_request
from triptych.errors import InvalidRequestError
from triptych.requests import build
from triptych.requests.options import ChatOptions, CompleteOptions, GenerationKeywords
from triptych.v1 import common_pb2, generation_pb2

_OPTIONS: dict[str, Any] = {
    "max_tokens": 0, "min_tokens": 1, "temperature": 0.0, "top_p": 0.5, "top_k": 4, "min_p": 0.25, "presence_penalty": 1.0,
    "frequency_penalty": 0.5, "repetition_penalty": 2.0, "logit_bias": {7: 1.5}, "allowed_token_ids": [1], "bad_token_ids": [2],
    "first_bad_token_ids": [5],
    "stop_token_ids": [3], "ignore_eos": True, "seed": -5, "logprobs": 0, "prompt_logprobs": 2, "stop": ["a", "b"],
    "include_stop_in_output": True, "skip_special_tokens": False, "n": 2, "return_token_ids": True, "priority": -1,
    "cache_salt": "s", "affinity_key": "k", "bad_words": ["w"], "truncate_prompt_tokens": -1, "best_of": 3,
    "clamp_max_tokens": True,
}  # fmt: skip


def test_options_become_the_fields_of_their_names() -> None:
    options = chat_request("hello", **_OPTIONS).options
    for name, value in _OPTIONS.items():
        message = options.sampling if name in common_pb2.SamplingParams.DESCRIPTOR.fields_by_name else options
        found = getattr(message, name)
        assert (dict(found) if name == "logit_bias" else list(found) if isinstance(value, list) else found) == value, name
    assert options == complete_request("hello", **_OPTIONS).options
    assert chat_request("hello").options == generation_pb2.GenerationOptions()
    assert chat_request("hello", **dict.fromkeys(_OPTIONS)) == chat_request("hello")
    sequences = chat_request("hello", bad_token_sequences=[[1, 2], [3]]).options.sampling.bad_token_sequences
    assert [list(sequence.token_ids) for sequence in sequences] == [[1, 2], [3]]


def test_options_of_chats_become_the_fields_of_their_names() -> None:
    flags = dict.fromkeys(("add_generation_prompt", "continue_final_message", "drop_oldest_messages", "parallel_tool_calls"), True)
    asked = generation_pb2.Transcription(languages=["de"])
    request = chat_request("hello", **flags, model="m", template_kwargs={"a": 1}, transcription=asked)
    assert {name: getattr(request, name) for name in flags} == flags
    assert request.transcription == asked
    assert (request.model, request.template_kwargs["a"]) == ("m", 1)


def test_every_option_of_the_contracts_has_a_keyword() -> None:
    keywords = set(GenerationKeywords.__annotations__)
    assert set(common_pb2.SamplingParams.DESCRIPTOR.fields_by_name) <= keywords
    assert set(generation_pb2.GenerationOptions.DESCRIPTOR.fields_by_name) - {"sampling"} <= keywords
    constraint = set(common_pb2.Constraint.DESCRIPTOR.fields_by_name) - {"starts_after_token_ids"}
    assert constraint <= keywords
    chat = set(generation_pb2.ChatRequest.DESCRIPTOR.fields_by_name) - {"messages", "options", "reasoning"}
    assert chat <= set(ChatOptions.__annotations__)
    assert set(generation_pb2.CompleteRequest.DESCRIPTOR.fields_by_name) - {"text", "token_ids", "options", "media"} <= set(
        CompleteOptions.__annotations__
    )


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"json_schema": {"type": "object"}}, "json_schema"), ({"json_object": True}, "json_object"), ({"regex": "a+"}, "regex"),
     ({"choice": ["a", "b"]}, "choice"), ({"grammar": "start: A"}, "grammar"),
     ({"constraint": common_pb2.Constraint(regex="a")}, "regex")],
)  # fmt: skip
def test_constraints(options: dict[str, Any], kind: str) -> None:
    assert chat_request("hello", **options).options.constraint.WhichOneof("kind") == kind


def test_a_schema_keeps_the_order_of_its_properties() -> None:
    class City(pydantic.BaseModel):
        name: str
        area: float

    for schema in ({"properties": {"b": {}, "a": {}}}, json.dumps({"properties": {"b": {}, "a": {}}})):
        sent = json.loads(chat_request("hello", json_schema=schema).options.constraint.json_schema)
        assert list(sent["properties"]) == ["b", "a"]
    sent = json.loads(chat_request("hello", json_schema=City).options.constraint.json_schema)
    assert list(sent["properties"]) == ["name", "area"]


def test_two_constraints_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="grammar and regex"):
        chat_request("hello", regex="a", grammar="b")


def test_one_choice_is_not_its_letters() -> None:
    with pytest.raises(InvalidRequestError, match="choice cannot be 'yes'"):
        chat_request("hello", choice="yes")


@pytest.mark.parametrize(
    ("name", "value"), [("max_tokens", -1), ("temperature", "hot"), ("stop_token_ids", [-1]), ("n", 1.5), ("bad_words", "no")]
)
def test_a_value_that_does_not_fit_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequestError, match=name) as caught:
        chat_request("hello", **{name: value})  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.value) == (name, str(value))


@pytest.mark.parametrize("make", [chat_request, complete_request])
def test_an_unknown_keyword_is_named(make: Any) -> None:
    with pytest.raises(TypeError, match="'top_q'"):
        make("hello", top_q=1)
    with pytest.raises(TypeError, match="'tools'"):
        complete_request("hello", tools=[])  # type: ignore[call-arg]


def test_messages_of_openai() -> None:
    wav, mp4 = (base64.b64encode(file).decode() for file in (b"RIFF", b"MP4"))
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
            {"type": "image_url", "image_url": "https://example.com/a.png", "uuid": "u"},
            {"type": "image", "image": b"PNG"},
            {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}},
            {"type": "video", "video": b"MP4", "processor_options": {"fps": 2}},
            "more",
        ]},
        {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "hm", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        generation_pb2.Choice(text="It is 3.", reasoning="well"),
    ]  # fmt: skip
    request = chat_request(messages, tools=[{"type": "function", "function": {
        "name": "add", "description": "adds", "strict": True, "parameters": {"type": "object"}}}], tool_choice="required",
        reasoning_effort="low", max_reasoning_tokens=5, template_kwargs={"x": 1})  # fmt: skip
    assert json_format.MessageToDict(request, preserving_proto_field_name=True) == {
        "messages": [
            {"role": "system", "content": [{"text": "Be brief."}]},
            {"role": "user", "name": "ann", "content": [
                {"text": "What?"},
                {"media": {"modality": "MODALITY_IMAGE", "url": "data:image/png;base64,AAAA", "detail": "low"}},
                {"media": {"modality": "MODALITY_IMAGE", "url": "https://example.com/a.png", "uuid": "u"}},
                {"media": {"modality": "MODALITY_IMAGE", "data": base64.b64encode(b"PNG").decode()}},
                {"media": {"modality": "MODALITY_AUDIO", "data": wav, "format": "wav"}},
                {"media": {"modality": "MODALITY_VIDEO", "data": mp4, "processor_options": {"fps": 2}}},
                {"text": "more"},
            ]},
            {"role": "assistant", "reasoning": "hm", "tool_calls": [{"id": "c1", "name": "add", "arguments": "{}"}]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"text": "3"}]},
            {"role": "assistant", "content": [{"text": "It is 3."}], "reasoning": "well"},
        ],
        "tools": [{"name": "add", "description": "adds", "strict": True, "parameters_json_schema": '{"type": "object"}'}],
        "tool_choice": {"mode": "MODE_REQUIRED"},
        "reasoning": {"effort": "low", "max_tokens": 5},
        "template_kwargs": {"x": 1},
        "options": {},
    }  # fmt: skip


def test_one_tool_can_be_chosen() -> None:
    choice = chat_request("hello", tool_choice={"type": "function", "function": {"name": "add"}}).tool_choice
    assert (choice.mode, list(choice.allowed_names)) == (generation_pb2.ToolChoice.MODE_REQUIRED, ["add"])
    with pytest.raises(InvalidRequestError, match="'maybe'"):
        chat_request("hello", tool_choice="maybe")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("turn", "field"),
    [
        ({"role": "user", "content": [{"type": "smell", "smell": b"x"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": "a", "mood": "good"}, "messages[0].mood"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "lang": "en"}]}, "messages[0].content[0].lang"),
        (
            {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "??"}}]},
            "messages[0].content[0].input_audio.data",
        ),
        ({"role": "user", "content": [{"type": "image", "image": 3}]}, "messages[0].content[0].media"),
        (7, "messages[0]"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": [7]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": 7}]}, "messages[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_audio", "input_audio": "x"}]}, "messages[0].content[0].input_audio"),
        ({"role": "assistant", "tool_calls": [7]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "messages[0].tool_calls[0].function"),
    ],
)
def test_a_part_that_is_not_known_is_named(turn: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_request([turn])
    assert caught.value.field == field


def test_pictures_belong_to_a_text_or_into_the_messages() -> None:
    request = chat_request("what?", images=[b"a"], audio=[b"b"], videos=[b"c"])
    assert [part.WhichOneof("part") for part in request.messages[0].content] == ["media", "media", "media", "text"]
    completion = complete_request("<image>what?<audio>", images=[b"a"], audio=[b"b"])
    assert [item.data for item in completion.media] == [b"a", b"b"]
    with pytest.raises(InvalidRequestError, match="put them into the messages"):
        chat_request([{"role": "user", "content": "what?"}], images=[b"a"])


@pytest.mark.parametrize(
    ("inputs", "kinds"),
    [
        ("a", ["text"]),
        (["a", "b"], ["text", "text"]),
        ([1, 2], ["token_ids"]),
        (np.array([1, 2]), ["token_ids"]),
        ([[1, 2], "a"], ["token_ids", "text"]),
        ([{"role": "user", "content": "a"}], ["messages"]),
        ([[{"role": "user", "content": "a"}], "b", generation_pb2.EmbedInput(text="c")], ["messages", "text", "text"]),
        ([], []),
    ],
)
def test_inputs_of_pooling(inputs: Any, kinds: list[str]) -> None:
    request = build.build_embed(inputs, {"dimensions": 4, "priority": 0})
    assert [one.WhichOneof("input") for one in request.inputs] == kinds
    assert (request.dimensions, request.HasField("priority")) == (4, True)
    assert [one.WhichOneof("input") for one in build.build_classify(inputs, {}).inputs] == kinds
