"""From validated REST requests to the contract's messages. Only what the client gave is set: defaults are the contract's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from triptych_common.pb import common_pb2, generation_pb2
from triptych_common.rpc.errors import InvalidRequestError

from triptych_gateway.dialects.media import media_item
from triptych_gateway.schemas.chat import ChatCompletionRequest, Message, TextPart, has_media
from triptych_gateway.schemas.common import GenerationRequest
from triptych_gateway.schemas.completions import CompletionRequest
from triptych_gateway.schemas.tokenize import TokenizeRequest

# Fields that the REST request and SamplingParams name alike.
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
    """How tokens are chosen."""
    sampling = common_pb2.SamplingParams(
        max_tokens=max_tokens,
        logprobs=logprobs,
        logit_bias=request.logit_bias,
        allowed_token_ids=request.allowed_token_ids,
        stop_token_ids=request.stop_token_ids,
        **{name: getattr(request, name) for name in _SAME_NAMED},
    )
    if request.top_k is not None:
        # vLLM's clients say -1 for "off".
        sampling.top_k = max(request.top_k, 0)
    return sampling


def generation_options(request: GenerationRequest, sampling: common_pb2.SamplingParams) -> generation_pb2.GenerationOptions:
    """What is about text. Answers that are not streamed travel in one piece per choice."""
    return generation_pb2.GenerationOptions(
        sampling=sampling,
        stop=request.stop,
        include_stop_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        n=request.n,
        output_mode=generation_pb2.OUTPUT_MODE_DELTA if request.stream else generation_pb2.OUTPUT_MODE_FINAL,
        return_token_ids=request.return_token_ids,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def chat_request(request: ChatCompletionRequest) -> generation_pb2.ChatRequest:
    """One Chat call."""
    sampling = sampling_params(request, request.token_limit, request.num_logprobs)
    return generation_pb2.ChatRequest(
        model=request.model,
        messages=chat_messages(request.messages, request.mm_processor_kwargs),
        options=generation_options(request, sampling),
        template_kwargs_json=_json(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )


def complete_requests(request: CompletionRequest) -> list[generation_pb2.CompleteRequest]:
    """One Complete call per prompt."""
    options = generation_options(request, sampling_params(request, request.token_limit, request.num_logprobs))
    return [
        generation_pb2.CompleteRequest(
            model=request.model,
            text=prompt if isinstance(prompt, str) else None,
            token_ids=generation_pb2.TokenIds(ids=prompt) if isinstance(prompt, list) else None,
            options=options,
            echo=request.echo,
            add_special_tokens=request.add_special_tokens,
        )
        for prompt in request.prompts
    ]


def tokenize_chat_request(request: TokenizeRequest) -> generation_pb2.ChatRequest:
    """The messages of /tokenize, for the first stage of Chat."""
    return generation_pb2.ChatRequest(
        model=request.model,
        messages=chat_messages(request.messages or (), request.mm_processor_kwargs),
        template_kwargs_json=_json(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )


def chat_messages(
    messages: Sequence[Message], mm_processor_kwargs: dict[str, Any] | None = None
) -> list[generation_pb2.ChatMessage]:
    """The turns of a conversation. With media in it this decodes files: see `media.media_item`."""
    if mm_processor_kwargs and not has_media(messages):
        field = "mm_processor_kwargs"
        raise InvalidRequestError(f"{field}: only allowed with media; there is none in the messages", field=field)
    return [chat_message(message, f"messages[{index}]", mm_processor_kwargs) for index, message in enumerate(messages)]


def chat_message(
    message: Message, field: str = "messages[0]", mm_processor_kwargs: dict[str, Any] | None = None
) -> generation_pb2.ChatMessage:
    """One turn.

    Args:
        field: its path, for errors.
        mm_processor_kwargs: processor options of the whole request.
    """
    if isinstance(message.content, str):
        parts = [generation_pb2.ContentPart(text=message.content)]
    else:
        parts = [
            generation_pb2.ContentPart(text=part.text)
            if isinstance(part, TextPart)
            else generation_pb2.ContentPart(media=media_item(part, f"{field}.content[{index}]", mm_processor_kwargs))
            for index, part in enumerate(message.content)
        ]
    return generation_pb2.ChatMessage(role=message.role, content=parts, name=message.name)


def _json(value: dict[str, object] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
