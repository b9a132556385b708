"""What cannot become a request is refused by name, before anything is sent; and nothing is quietly taken for something else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from triptych import AsyncClient, Client, chat_request, complete_request, media_item
from triptych.client.answers import ranked
from triptych.errors import InvalidRequestError
from triptych.requests import build
from triptych.v1 import common_pb2, generation_pb2


def _content(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts]}]


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (None, "messages"),
        (5, "messages"),
        ("\ud800", "messages[0].content[0].text"),
        ([{"role": 5, "content": "a"}], "messages[0].role"),
        ([{"role": "user", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        # A dictionary is iterable: its keys are no parts.
        ([{"role": "user", "content": {"type": "text", "text": "a"}}], "messages[0].content"),
        (_content(5), "messages[0].content[0]"),
        (_content({"type": ["text"]}), "messages[0].content[0].type"),
        (_content({"type": "text", "text": 5}), "messages[0].content[0].text"),
        (_content({"type": "text"}), "messages[0].content[0].text"),
        (_content({"type": "image_url"}), "messages[0].content[0].image_url"),
        (_content({"type": "image_url", "image_url": 5}), "messages[0].content[0].image_url"),
        (_content({"type": "image_url", "image_url": {}}), "messages[0].content[0].image_url.url"),
        (_content({"type": "image_url", "image_url": {"url": 5}}), "messages[0].content[0].image_url.url"),
        (_content({"type": "input_audio", "input_audio": "a"}), "messages[0].content[0].input_audio"),
        (_content({"type": "input_audio", "input_audio": {"data": 5}}), "messages[0].content[0].input_audio.data"),
        (_content({"type": "input_audio", "input_audio": {"data": "\u00e9"}}), "messages[0].content[0].input_audio.data"),
        (_content({"type": "image", "image": b"a", "processor_options": 5}), "messages[0].content[0].processor_options"),
        (_content({"type": "image", "image": b"a", "uuid": 5}), "messages[0].content[0].uuid"),
        (_content({"type": "file", "file": {"file_id": "a"}}), "messages[0].content[0].type"),
        (_content({"type": "refusal", "refusal": "a"}), "messages[0].content[0].type"),
        ([{"role": "assistant", "refusal": "a"}], "messages[0].refusal"),
        ([{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": 5}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]}], "messages[0].tool_calls[0].type"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_messages(messages: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_request(messages)
    assert caught.value.field == field
    assert field in caught.value.message


class _NoSchema:
    pass


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"bad_words": "abc"}, "bad_words"),  # not the words a, b and c
        ({"choice": "abc"}, "choice"),
        ({"stop_token_ids": b"abc"}, "stop_token_ids"),
        ({"beam_search": {"width": 2}}, "beam_search"),
        ({"constraint": {"regex": "a"}}, "constraint"),
        ({"json_schema": _NoSchema}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"json_schema": {"a": float("nan")}}, "json_schema"),
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": 5}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]}, "tools[0].parameters"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tool_choice": ["auto"]}, "tool_choice"),
        ({"template_kwargs": 5}, "template_kwargs"),
        ({"template_kwargs": {"a": object()}}, "template_kwargs"),
        ({"template_kwargs": {5: 1}}, "template_kwargs"),
        ({"bad_token_sequences": 5}, "bad_token_sequences"),
        ({"bad_token_sequences": [5]}, "bad_token_sequences[0]"),
        ({"reasoning_effort": 5}, "reasoning_effort"),
        ({"images": "photo.jpg"}, "images"),  # not the files p, h, o ...
        ({"images": b"PNG"}, "images"),
        ({"images": Path("photo.jpg")}, "images"),
        ({"images": np.zeros((2, 4, 3), "uint8")}, "images"),  # not two grey pictures
        ({"images": Image.new("RGB", (2, 2))}, "images"),
        ({"images": common_pb2.MediaItem(data=b"a")}, "images"),
        ({"videos": 5}, "videos"),
    ],
)
def test_options(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        chat_request("hello", **options)
    assert caught.value.field == field
    assert field in caught.value.message
    assert len(caught.value.message) < 500


@pytest.mark.parametrize("prompt", [None, 5, b"ab", ["a"], [1.5], [-1], {"a": 1}])
def test_prompts(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="prompt"):
        complete_request(prompt)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        complete_request([*range(100_000), -1])
    assert len(caught.value.message) + len(caught.value.value) < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: build.build_embed({"role": "user", "content": "a"}, {}),  # type: ignore[arg-type]
        lambda: build.build_embed(5, {}),  # type: ignore[arg-type]
        lambda: build.build_embed([None], {}),  # type: ignore[arg-type]
        lambda: build.build_score("a", b"ab", {}),
        lambda: build.build_tokenize(5, {}),  # type: ignore[arg-type]
        lambda: build.build_detokenize(b"ab", {}),
        lambda: build.documents("one document"),
        lambda: build.documents([1, 2, 3]),  # type: ignore[list-item]
        lambda: build.documents([{"role": "user", "content": "a"}]),  # type: ignore[list-item]
    ],
)
def test_inputs_of_other_calls(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequestError):
        make()


def test_iterators_are_read_once_and_whole() -> None:
    assert len(chat_request("a", images=(item for item in [b"a", b"b"])).messages[0].content) == 3  # type: ignore[arg-type]
    assert len(chat_request({"role": role, "content": "a"} for role in ("user", "assistant")).messages) == 2  # type: ignore[arg-type]
    assert len(build.build_embed((text for text in "ab"), {}).inputs) == 2  # type: ignore[arg-type]


def test_a_batch_of_pictures_is_pictures() -> None:
    assert len(chat_request("a", images=np.zeros((2, 4, 4, 3), "uint8")).messages[0].content) == 3  # type: ignore[arg-type]


def test_an_empty_picture_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="empty"):
        media_item("image", Image.new("RGB", (0, 4)))


async def test_one_text_is_no_list_of_documents() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(InvalidRequestError, match="documents"):
        client.rerank("query", "document")
    async with AsyncClient("127.0.0.1:1") as aclient:
        with pytest.raises(InvalidRequestError, match="documents"):
            await aclient.rerank("query", "document")


def test_documents_are_ranked_one_score_each() -> None:
    response = generation_pb2.ScoreResponse(scores=[1, 3, 2])
    assert [one.index for one in ranked(response, "abc", 2)] == [1, 2]
    with pytest.raises(InvalidRequestError, match="top_n"):
        ranked(response, "abc", -1)
