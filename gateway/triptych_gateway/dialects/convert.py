"""Converts validated REST requests to the contract's calls. Sets only what the client set: defaults are the contract's."""

from __future__ import annotations

from collections.abc import Sequence

from triptych.v1 import common_pb2, generation_pb2

from triptych_gateway.dialects import conversation
from triptych_gateway.dialects.conversation import chat_messages, check_all_taken, placed, template_kwargs
from triptych_gateway.file_parts import FileParts
from triptych_gateway.frontends.calls import FrontendCall, MediaFile
from triptych_gateway.schemas.chat.request import ChatCompletionRequest
from triptych_gateway.schemas.completions import CompletionRequest
from triptych_gateway.schemas.generation import GenerationRequest
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
        prompt_logprobs=request.prompt_logprobs,
        **{name: getattr(request, name) for name in _SAME_NAMED},
    )
    if request.top_k is not None:
        # vLLM's clients send -1 to disable top-k.
        sampling.top_k = max(request.top_k, 0)
    return sampling


def generation_options(
    request: GenerationRequest, sampling: common_pb2.SamplingParams, parts: FileParts
) -> generation_pb2.GenerationOptions:
    """The generation options of a request."""
    return generation_pb2.GenerationOptions(
        sampling=sampling,
        stop=request.stop,
        include_stop_in_output=request.include_stop_str_in_output,
        skip_special_tokens=request.skip_special_tokens,
        n=request.n,
        # The usage so far is counted by them.
        return_token_ids=request.has_continuous_usage or request.return_token_ids,
        priority=request.priority,
        cache_salt=request.cache_salt,
        constraint=conversation.constraint(request.response_format, request.structured_outputs, parts),
        bad_words=request.bad_words,
        truncate_prompt_tokens=request.truncate_prompt_tokens,
        # Equal to n it asks for nothing. With beam search it is the number of beams.
        best_of=request.best_of if request.best_of != request.num_choices and not request.use_beam_search else None,
        beam_search=beam_search(request),
    )


def beam_search(request: GenerationRequest) -> generation_pb2.BeamSearch | None:
    """The beam search of a request, if it asks for one."""
    if not request.use_beam_search:
        return None
    return generation_pb2.BeamSearch(width=request.best_of, length_penalty=request.length_penalty)


def reasoning(request: ChatCompletionRequest) -> generation_pb2.Reasoning | None:
    """How much the model reasons; None if the client did not say."""
    if request.reasoning_effort is None and request.thinking_token_budget is None:
        return None
    return generation_pb2.Reasoning(effort=request.reasoning_effort, max_tokens=request.thinking_token_budget)


def output_mode(request: GenerationRequest) -> generation_pb2.OutputMode:
    """The output mode. Without streaming, the frontend sends each choice once, when it has ended."""
    return generation_pb2.OUTPUT_MODE_DELTA if request.stream else generation_pb2.OUTPUT_MODE_FINAL


def chat_call(request: ChatCompletionRequest, request_id: str, parts: FileParts) -> FrontendCall:
    """One Chat call. It decodes the media files, if there are any."""
    chat, files = _chat_request(request, parts)
    return FrontendCall(chat, request_id, output_mode(request), files)


def render_chat_request(request: ChatCompletionRequest, parts: FileParts) -> generation_pb2.ChatRequest:
    """The request for Preprocess. It contains the files, because PreprocessService takes no uploads."""
    return _with_files(*_chat_request(request, parts))


def _chat_request(request: ChatCompletionRequest, parts: FileParts) -> tuple[generation_pb2.ChatRequest, list[MediaFile]]:
    sampling = sampling_params(request, request.token_limit, request.num_logprobs)
    messages, files = chat_messages(request.messages, parts, request.mm_processor_kwargs)
    has_tools = bool(request.tools)
    chat = generation_pb2.ChatRequest(
        model=request.model,
        messages=messages,
        options=generation_options(request, sampling, parts),
        template_kwargs=template_kwargs(request.chat_template_kwargs),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        tools=conversation.tools(request.tools, parts),
        # Without tools these ask for nothing.
        tool_choice=conversation.tool_choice(request.tool_choice) if has_tools else None,
        parallel_tool_calls=request.parallel_tool_calls if has_tools else None,
        reasoning=reasoning(request),
    )
    check_all_taken(parts)
    return chat, placed(chat, files)


def _with_files(chat: generation_pb2.ChatRequest, files: Sequence[MediaFile]) -> generation_pb2.ChatRequest:
    for file in files:
        file.item.data = file.content
    return chat


def complete_calls(request: CompletionRequest, request_ids: Sequence[str], parts: FileParts) -> list[FrontendCall]:
    """One Complete call per prompt."""
    options = generation_options(request, sampling_params(request, request.token_limit, request.num_logprobs), parts)
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
        tools=conversation.tools(request.tools, parts),
    )
    check_all_taken(parts)
    return _with_files(chat, placed(chat, files))
