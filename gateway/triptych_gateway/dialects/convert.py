"""Converts validated REST requests to the contract's messages. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import struct_pb2
from triptych_common.errors import InvalidRequestError
from triptych_common.pb import common_pb2, generation_pb2
from triptych_common.rpc.structs import to_struct

from triptych_gateway.dialects.media import media_item
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.schemas.chat import ChatCompletionRequest, Message, TextPart, has_media
from triptych_gateway.schemas.common import GenerationRequest
from triptych_gateway.schemas.completions import CompletionRequest
from triptych_gateway.schemas.tokenize import TokenizeRequest

# Fields with the same name in the REST request and in SamplingParams.
_SAME_NAMED = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "ignore_eos",
    "seed",
)


def sampling_params(request: GenerationRequest, max_tokens: int | None, logprobs: int | None) -> common_pb2.SamplingParams:
    """The sampling parameters of a request."""
    sampling = common_pb2.SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        logit_bias=request.logit_bias,
        allowed_token_ids=request.allowed_token_ids,
        stop_token_ids=request.stop_token_ids,
        **{name: getattr(request, name) for name in _SAME_NAMED},
    )
    if request.top_k is not None:
        # vLLM's clients send -1 to disable top-k.
        sampling.top_k = max(request.top_k, 0)
    return sampling


def generation_options(request: GenerationRequest, sampling: common_pb2.SamplingParams) -> generation_pb2.GenerationOptions:
    """The generation options of a request."""
    return generation_pb2.GenerationOptions(
        sampling=sampling,
        stop=request.stop,
        include_stop_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        n=request.n,
        return_token_ids=request.return_token_ids,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def output_mode(request: GenerationRequest) -> generation_pb2.OutputMode:
    """The output mode. Without streaming, the frontend sends each choice once, when it has ended."""
    return generation_pb2.OUTPUT_MODE_DELTA if request.stream else generation_pb2.OUTPUT_MODE_FINAL


def chat_call(request: ChatCompletionRequest, request_id: str, parts: FileParts) -> FrontendCall:
    """One Chat call. It decodes the media files, if there are any."""
    sampling = sampling_params(request, request.token_limit, request.num_logprobs)
    messages, files = chat_messages(request.messages, parts, request.mm_processor_kwargs)
    chat = generation_pb2.ChatRequest(
        model=request.model,
        messages=messages,
        options=generation_options(request, sampling),
        template_kwargs=template_kwargs(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )
    return FrontendCall(chat, request_id, output_mode(request), _placed(chat, files))


def complete_calls(request: CompletionRequest, request_ids: Sequence[str]) -> list[FrontendCall]:
    """One Complete call per prompt."""
    options = generation_options(request, sampling_params(request, request.token_limit, request.num_logprobs))
    mode = output_mode(request)
    return [
        FrontendCall(
            generation_pb2.CompleteRequest(
                model=request.model,
                text=prompt if isinstance(prompt, str) else None,
                token_ids=generation_pb2.TokenIds(ids=prompt) if isinstance(prompt, list) else None,
                options=options,
                echo=request.echo,
                add_special_tokens=request.add_special_tokens,
            ),
            request_id,
            mode,
        )
        for prompt, request_id in zip(request.prompts, request_ids, strict=True)
    ]


def tokenize_chat_request(request: TokenizeRequest, parts: FileParts) -> generation_pb2.ChatRequest:
    """The messages of /tokenize as a ChatRequest for Preprocess. It contains the files."""
    messages, files = chat_messages(request.messages or (), parts, request.mm_processor_kwargs)
    chat = generation_pb2.ChatRequest(
        model=request.model,
        messages=messages,
        template_kwargs=template_kwargs(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )
    for file in _placed(chat, files):
        file.item.data = file.content
    return chat


#: (index of the message, index of the part) -> content of the file.
Files = dict[tuple[int, int], bytes]


def _placed(chat: generation_pb2.ChatRequest, files: Files) -> list[MediaFile]:
    """The files, each with its MediaItem in the request."""
    return [MediaFile(chat.messages[number].content[index].media, content) for (number, index), content in files.items()]


def template_kwargs(value: dict[str, Any] | None) -> struct_pb2.Struct | None:
    """Variables of the chat template as a Struct."""
    return None if value is None else to_struct(value)


def chat_messages(
    messages: Sequence[Message], parts: FileParts, mm_processor_kwargs: dict[str, Any] | None = None
) -> tuple[list[generation_pb2.ChatMessage], Files]:
    """The messages of a conversation, and their inline files.

    Args:
        parts: files that were cut out of the body.
    """
    if mm_processor_kwargs and not has_media(messages):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the messages", field=field)
    files: Files = {}
    turns = []
    for number, message in enumerate(messages):
        pieces = []
        content = message.content
        if isinstance(content, str):
            pieces.append(generation_pb2.ContentPart(text=content))
        else:
            for index, part in enumerate(content):
                if isinstance(part, TextPart):
                    pieces.append(generation_pb2.ContentPart(text=part.text))
                    continue
                item, file = media_item(part, f"messages[{number}].content[{index}]", parts, mm_processor_kwargs)
                pieces.append(generation_pb2.ContentPart(media=item))
                if file is not None:
                    files[number, index] = file
        turns.append(generation_pb2.ChatMessage(role=message.role, content=pieces, name=message.name))
    if parts:
        raise InvalidRequestError("the body has the address of a file in a place that takes none")
    return turns, files
