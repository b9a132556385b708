"""Requests from what a caller gives: a request that is finished, or values and keyword options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar, Unpack

from google.protobuf.message import Message

from triptych.requests import options as of
from triptych.requests.fields import assign, listed, refused
from triptych.requests.media import Kind, media_item
from triptych.requests.messages import chat_messages, make_tool_choice, make_tools
from triptych.requests.types import MediaSource, Messages, PoolingInput
from triptych.v1 import detokenize_pb2, generation_pb2, preprocess_pb2

_MessageT = TypeVar("_MessageT", bound=Message)

_CHAT = frozenset(
    {"model", "parallel_tool_calls", "add_generation_prompt", "continue_final_message", "template_kwargs", "drop_oldest_messages"}
)
_COMPLETE = frozenset({"model", "echo", "add_special_tokens"})


def chat_request(messages: Messages, **options: Unpack[of.ChatOptions]) -> generation_pb2.ChatRequest:
    """A chat from messages and keyword options, as `Client.chat` makes it. It reads files and encodes pictures.

    Raises:
        InvalidRequestError: a value that the contracts cannot hold.
        OSError: a media file cannot be read.
        TypeError: an unknown keyword.
    """
    return build_chat(messages, options)


def complete_request(prompt: str | Sequence[int], **options: Unpack[of.CompleteOptions]) -> generation_pb2.CompleteRequest:
    """A completion from a prompt (text or token ids) and keyword options, as `Client.complete` makes it.

    Raises:
        InvalidRequestError: a value that the contracts cannot hold.
        OSError: a media file cannot be read.
        TypeError: an unknown keyword.
    """
    return build_complete(prompt, options)


def build_chat(messages: Messages | generation_pb2.ChatRequest, options: of.ChatOptions) -> generation_pb2.ChatRequest:
    given: dict[str, Any] = {**options}
    if isinstance(messages, generation_pb2.ChatRequest):
        return _finished(messages, given)
    request = generation_pb2.ChatRequest(messages=chat_messages(messages, _take_media(given)))
    of.take(given, request, _CHAT)
    if (tools := given.pop("tools", None)) is not None:
        request.tools.extend(make_tools(tools))
    if (choice := given.pop("tool_choice", None)) is not None:
        request.tool_choice.CopyFrom(make_tool_choice(choice))
    for name, option in (("effort", "reasoning_effort"), ("max_tokens", "max_reasoning_tokens")):
        assign(request.reasoning, name, given.pop(option, None), option)
    request.options.CopyFrom(of.take_generation(given))
    return _finished(request, given)


def build_chat_stream(
    messages: Messages | generation_pb2.ChatRequest | generation_pb2.ChatStreamRequest, options: of.ChatOptions
) -> generation_pb2.ChatStreamRequest:
    if isinstance(messages, generation_pb2.ChatStreamRequest):
        return _finished(messages, {**options})
    return generation_pb2.ChatStreamRequest(chat=build_chat(messages, options))


def build_complete(
    prompt: str | Sequence[int] | generation_pb2.CompleteRequest, options: of.CompleteOptions
) -> generation_pb2.CompleteRequest:
    given: dict[str, Any] = {**options}
    if isinstance(prompt, generation_pb2.CompleteRequest):
        return _finished(prompt, given)
    request = generation_pb2.CompleteRequest()
    if isinstance(prompt, str):
        assign(request, "text", prompt, "prompt")
    else:
        assign(request.token_ids, "ids", listed(prompt, "prompt"), "prompt")
        request.token_ids.SetInParent()
    request.media.extend(media_item(kind, source, field=f"media[{i}]") for i, (kind, source) in enumerate(_take_media(given)))
    of.take(given, request, _COMPLETE)
    request.options.CopyFrom(of.take_generation(given))
    return _finished(request, given)


def build_complete_stream(
    prompt: str | Sequence[int] | generation_pb2.CompleteRequest | generation_pb2.CompleteStreamRequest, options: of.CompleteOptions
) -> generation_pb2.CompleteStreamRequest:
    if isinstance(prompt, generation_pb2.CompleteStreamRequest):
        return _finished(prompt, {**options})
    return generation_pb2.CompleteStreamRequest(complete=build_complete(prompt, options))


def build_embed(
    inputs: PoolingInput | Sequence[PoolingInput] | generation_pb2.EmbedRequest, options: of.EmbedOptions
) -> generation_pb2.EmbedRequest:
    if isinstance(inputs, generation_pb2.EmbedRequest):
        return _finished(inputs, {**options})
    return _simple(generation_pb2.EmbedRequest(inputs=_inputs(inputs)), {**options})


def build_score(
    queries: PoolingInput | Sequence[PoolingInput] | generation_pb2.ScoreRequest,
    documents: PoolingInput | Sequence[PoolingInput],
    options: of.ScoreOptions,
) -> generation_pb2.ScoreRequest:
    if isinstance(queries, generation_pb2.ScoreRequest):
        return _finished(queries, {**options, **({"documents": documents} if documents else {})})
    return _simple(generation_pb2.ScoreRequest(queries=_inputs(queries), documents=_inputs(documents)), {**options})


def build_classify(
    inputs: PoolingInput | Sequence[PoolingInput] | generation_pb2.ClassifyRequest, options: of.ClassifyOptions
) -> generation_pb2.ClassifyRequest:
    if isinstance(inputs, generation_pb2.ClassifyRequest):
        return _finished(inputs, {**options})
    return _simple(generation_pb2.ClassifyRequest(inputs=_inputs(inputs)), {**options})


def build_tokenize(text: str | preprocess_pb2.TokenizeRequest, options: of.TokenizeOptions) -> preprocess_pb2.TokenizeRequest:
    if isinstance(text, preprocess_pb2.TokenizeRequest):
        return _finished(text, {**options})
    request = preprocess_pb2.TokenizeRequest()
    assign(request, "text", text)
    return _simple(request, {**options})


def build_detokenize(
    token_ids: Sequence[int] | detokenize_pb2.DetokenizeRequest, options: of.DetokenizeOptions
) -> detokenize_pb2.DetokenizeRequest:
    if isinstance(token_ids, detokenize_pb2.DetokenizeRequest):
        return _finished(token_ids, {**options})
    request = detokenize_pb2.DetokenizeRequest()
    assign(request, "token_ids", token_ids)
    return _simple(request, {**options})


def build_preprocess(
    messages: Messages | generation_pb2.ChatRequest | generation_pb2.CompleteRequest | preprocess_pb2.PreprocessRequest,
    options: of.ChatOptions,
) -> preprocess_pb2.PreprocessRequest:
    if isinstance(messages, preprocess_pb2.PreprocessRequest):
        return _finished(messages, {**options})
    if isinstance(messages, generation_pb2.CompleteRequest):
        return _finished(preprocess_pb2.PreprocessRequest(complete=messages), {**options})
    return preprocess_pb2.PreprocessRequest(chat=build_chat(messages, options))


def refuse(options: Mapping[str, Any]) -> None:
    """Refuse keywords that nothing has read."""
    for name in options:
        raise TypeError(f"unexpected keyword argument {name!r}")


def _finished(request: _MessageT, rest: Mapping[str, Any]) -> _MessageT:
    refuse(rest)
    return request


def _simple(request: _MessageT, options: dict[str, Any]) -> _MessageT:
    """A request whose options all are fields of its own."""
    of.take(options, request, frozenset(request.DESCRIPTOR.fields_by_name))
    return _finished(request, options)


def _take_media(options: dict[str, Any]) -> list[tuple[Kind, MediaSource]]:
    kinds: tuple[tuple[str, Kind], ...] = (("images", "image"), ("audio", "audio"), ("videos", "video"))
    return [(kind, source) for name, kind in kinds for source in _sources(options.pop(name, None), name)]


def _sources(sources: Any, name: str) -> list[MediaSource]:
    if sources is None:
        return []
    # One picture of an array would be taken for a list of its rows.
    if getattr(sources, "ndim", 4) < 4:
        raise refused(name, sources, "a list is needed")
    return listed(sources, name)


def _inputs(inputs: PoolingInput | Sequence[PoolingInput]) -> list[generation_pb2.EmbedInput]:
    """One input, or several: text, token ids, or a conversation."""
    if isinstance(inputs, str | generation_pb2.EmbedInput):
        return [_input(inputs)]
    values = listed(inputs, "inputs")
    return [_input(values)] if values and _is_turn(values[0]) else [_input(one) for one in values]


def documents(given: Sequence[PoolingInput]) -> list[generation_pb2.EmbedInput]:
    """The inputs of `rerank`, which are always several: a list of numbers or of turns is not taken for one document."""
    return [_input(one) for one in listed(given, "documents")]


def _is_turn(value: object) -> bool:
    return isinstance(value, Integral | Mapping | generation_pb2.ChatMessage)


def _input(value: PoolingInput) -> generation_pb2.EmbedInput:
    if isinstance(value, generation_pb2.EmbedInput):
        return value
    result = generation_pb2.EmbedInput()
    if isinstance(value, str):
        assign(result, "text", value, "inputs")
        return result
    values = listed(value, "inputs")
    if values and not isinstance(values[0], Integral):
        return generation_pb2.EmbedInput(messages=generation_pb2.ChatMessages(messages=chat_messages(values)))
    assign(result.token_ids, "ids", values, "inputs")
    result.token_ids.SetInParent()
    return result
