"""REST requests become the contract's messages: everything that was given, and nothing that was not."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.rpc.structs import from_struct
from triptych_gateway.apis.chat.request import chat_request
from triptych_gateway.apis.chat.schema import ChatCompletionRequest
from triptych_gateway.apis.completions.request import complete_calls
from triptych_gateway.apis.completions.schema import CompletionRequest
from triptych_gateway.file_parts import FileParts
from triptych_gateway.wire.contract import write_prompt
from triptych_gateway.wire.conversation import ChatPrompt, Message
from triptych_gateway.wire.field_names import FIELD_NAMES, in_client_terms
from triptych_gateway.wire.generation import GenerationRequest
from triptych_gateway.wire.media import media_fields

NO_FILES = FileParts(bytearray())
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


def converted_chat(body: ChatCompletionRequest) -> generation_pb2.ChatRequest:
    """The request, with its files in it."""
    chat, files, _ = chat_request(body, NO_FILES)
    for file in files:
        file.item.data = file.content
    return chat


def converted_messages(message: Message) -> tuple[generation_pb2.ChatMessage, list[bytes]]:
    """The message, and its files."""
    chat = generation_pb2.ChatRequest()
    files = write_prompt(chat, ChatPrompt(), [message], NO_FILES)
    return chat.messages[0], [file.content for file in files]


def test_what_was_not_given_is_not_sent() -> None:
    nothing = dict.fromkeys(ChatCompletionRequest.model_fields)
    converted = converted_chat(ChatCompletionRequest.model_validate(nothing | CHAT))
    assert MessageToDict(converted, preserving_proto_field_name=True) == {
        "model": "m",
        "messages": [{"role": "user", "content": [{"text": "Hi"}]}],
        "options": {"sampling": {}},
    }


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 4}, 4)],
)
def test_chat_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    sampling = converted_chat(ChatCompletionRequest.model_validate(CHAT | fields)).options.sampling
    assert (sampling.logprobs if sampling.HasField("logprobs") else None) == logprobs


def test_completions_have_openais_default_of_max_tokens() -> None:
    (call,) = complete_calls(CompletionRequest.model_validate({"model": "m", "prompt": "x"}), "id", NO_FILES)
    assert call.request.options.sampling.max_tokens == 16


def test_streams_ask_for_deltas() -> None:
    body = {"model": "m", "prompt": "x"}
    (streamed,), (whole,) = (
        complete_calls(CompletionRequest.model_validate(body | {"stream": stream}), "id", NO_FILES) for stream in (True, False)
    )
    assert streamed.output_mode == generation_pb2.OUTPUT_MODE_DELTA
    assert whole.output_mode == generation_pb2.OUTPUT_MODE_FINAL


def test_content_parts_keep_their_order() -> None:
    message = Message.model_validate(
        {
            "role": "user",
            "name": "Ann",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "auto"}},
                {"type": "text", "text": "What?"},
                {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"RIFF").decode(), "format": "wav"}},
                {"type": "video_url", "video_url": {"url": "https://x/v.mp4"}},
            ],
        }
    )
    converted, files = converted_messages(message)
    image, text, audio, video = converted.content
    assert files == [b"\0", b"RIFF"]
    assert image.media.modality == common_pb2.MODALITY_IMAGE
    assert text.text == "What?"
    assert (audio.media.modality, audio.media.format) == (common_pb2.MODALITY_AUDIO, "wav")
    assert (video.media.modality, video.media.url) == (common_pb2.MODALITY_VIDEO, "https://x/v.mp4")
    assert converted.name == "Ann"


def test_items_keep_names_and_options() -> None:
    content = [
        {"type": "image_url", "image_url": {"url": "https://x/a.png"}, "uuid": "cat"},
        {"type": "image_url", "uuid": "cat", "mm_processor_kwargs": {"size": {"longest_edge": 64}}},
        {"type": "audio_url", "audio_url": {"url": "DATA:audio/wav;base64,UklGRg=="}},
    ]
    fields = {"messages": [{"role": "user", "content": content}], "mm_processor_kwargs": {"size": 1, "fps": 2}}
    converted = converted_chat(ChatCompletionRequest.model_validate(CHAT | fields))
    named, alias, sound = (part.media for part in converted.messages[0].content)
    assert (named.url, named.uuid, from_struct(named.processor_options)) == ("https://x/a.png", "cat", {"size": 1, "fps": 2})
    assert (alias.WhichOneof("source"), alias.uuid) == (None, "cat")
    assert from_struct(alias.processor_options) == {"size": {"longest_edge": 64}, "fps": 2}
    assert (sound.modality, sound.data) == (common_pb2.MODALITY_AUDIO, b"RIFF")


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}, "image_url.url"),
        ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64"}}, "video_url.url"),
        ({"type": "input_audio", "input_audio": {"data": "?", "format": "wav"}}, "input_audio.data"),
        ({"type": "audio_url", "audio_url": {"url": "data:,"}}, "audio_url.url"),
    ],
)
def test_what_cannot_be_decoded_is_named(part: dict[str, Any], field: str) -> None:
    message = Message.model_validate({"role": "user", "content": [part]})
    with pytest.raises(InvalidRequestError) as caught:
        converted_messages(message)
    assert caught.value.field == f"messages[0].content[0].{field}"


def test_options_without_media_are_refused() -> None:
    request = ChatCompletionRequest.model_validate(CHAT | {"mm_processor_kwargs": {"fps": 1}})
    with pytest.raises(InvalidRequestError, match="only allowed with media"):
        converted_chat(request)


@pytest.mark.parametrize(
    ("field", "renamed"),
    [
        ("messages[0].content[1].media", "messages[0].content[1].image_url"),
        ("messages[0].content[1].media.url", "messages[0].content[1].image_url.url"),
        ("messages[0].content[1].media.uuid", "messages[0].content[1].uuid"),
        ("messages[0].content[1].media.processor_options", "messages[0].content[1].mm_processor_kwargs"),
        ("messages[0].content[11].media", "messages[0].content[11].media"),
        ("messages[0].content[1].media.processor_options.size", "messages[0].content[1].mm_processor_kwargs.size"),
        ("options.stop[1]", "stop[1]"),
        ("options.sampling.logit_bias[7]", "logit_bias[7]"),
        ("options.include_stop_in_output", "include_stop_str_in_output"),
        ("optionsx", "optionsx"),
    ],
)
def test_errors_of_the_frontend_name_what_the_client_sent(field: str, renamed: str) -> None:
    content = [{"type": "text", "text": "Hi"}, {"type": "image_url", "image_url": {"url": "https://x/a.png"}}]
    names = FIELD_NAMES | media_fields([Message.model_validate({"role": "user", "content": content})])
    error = in_client_terms(InvalidRequestError(f"{field} is bad", field=field, limit=3, value=4), names)
    assert (error.field, error.message, error.limit, error.value) == (renamed, f"{renamed} is bad", "3", "4")
    assert isinstance(error, InvalidRequestError)


@pytest.mark.parametrize(
    ("field", "message", "renamed"),
    [
        ("template_kwargs", "template_kwargs must not set 'messages'", "chat_template_kwargs must not set 'messages'"),
        ("options", "options: not allowed together", "options: not allowed together"),
        ("options.sampling.max_tokens", "max_tokens is 9, more than 8", "max_completion_tokens is 9, more than 8"),
        ("options.sampling.min_tokens", "min_tokens is more than max_tokens", "min_tokens is more than max_completion_tokens"),
        ("sampling.max_tokens", "sampling.max_tokens is 9", "max_completion_tokens is 9"),
        ("options.n", "options.n must be 1; options are", "n must be 1; options are"),
        ("messages[0].content[1].media", "messages[0].content[1].media: media of", "messages[0].content[1].image_url: media of"),
    ],
)
def test_messages_name_what_the_client_sent(field: str, message: str, renamed: str) -> None:
    names = FIELD_NAMES | {
        "options.sampling.max_tokens": "max_completion_tokens",
        "sampling.max_tokens": "max_completion_tokens",
        "messages[0].content[1].media": "messages[0].content[1].image_url",
    }
    assert in_client_terms(InvalidRequestError(message, field=field), names).message == renamed


@given(st.text(st.characters(codec="utf-8")))
def test_text_arrives_unchanged(text: str) -> None:
    message = Message.model_validate({"role": "user", "content": text})
    converted, _ = converted_messages(message)
    assert converted.content[0].text == text


@pytest.mark.parametrize("schema", [ChatCompletionRequest, CompletionRequest])
def test_openai_fields_are_all_known(schema: type[GenerationRequest]) -> None:
    """Against the SDK's own list, so that a new OpenAI field is noticed when the SDK is updated."""
    from openai.types import completion_create_params
    from openai.types.chat import completion_create_params as chat_create_params

    params = chat_create_params if schema is ChatCompletionRequest else completion_create_params
    known = params.CompletionCreateParamsStreaming.__annotations__ | params.CompletionCreateParamsBase.__annotations__
    assert set(known) <= set(schema.model_fields)
