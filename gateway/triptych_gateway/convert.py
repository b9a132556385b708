"""From validated REST requests to the contract's messages. Only what the client gave is set: defaults are the contract's."""

from __future__ import annotations

import orjson
from triptych_common.pb import common_pb2, generation_pb2

from triptych_gateway.schemas.chat import AudioPart, ChatCompletionRequest, ContentPart, ImagePart, Message, TextPart
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
        messages=[chat_message(message) for message in request.messages],
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
        messages=[chat_message(message) for message in request.messages or ()],
        template_kwargs_json=_json(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
    )


def chat_message(message: Message) -> generation_pb2.ChatMessage:
    """One turn."""
    if isinstance(message.content, str):
        parts = [generation_pb2.ContentPart(text=message.content)]
    else:
        parts = [_content_part(part) for part in message.content]
    return generation_pb2.ChatMessage(role=message.role, content=parts, name=message.name)


def _content_part(part: ContentPart) -> generation_pb2.ContentPart:
    if isinstance(part, TextPart):
        return generation_pb2.ContentPart(text=part.text)
    if isinstance(part, AudioPart):
        media = common_pb2.MediaItem(modality=common_pb2.MODALITY_AUDIO, data=part.input_audio.data)
    elif isinstance(part, ImagePart):
        media = common_pb2.MediaItem(modality=common_pb2.MODALITY_IMAGE, url=part.image_url.url)
    else:
        media = common_pb2.MediaItem(modality=common_pb2.MODALITY_VIDEO, url=part.video_url.url)
    return generation_pb2.ContentPart(media=media)


def _json(value: dict[str, object] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()
