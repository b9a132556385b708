"""Requests from what a caller gives: a request that is finished, or values and keyword options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, TypeVar, Unpack

from google.protobuf.message import Message

from triptych.requests import options as of
from triptych.requests.fields import assign, listed, refused
from triptych.requests.media import Kind, media_item
from triptych.requests.messages import chat_messages, make_tool_choice, make_tools
from triptych.requests.types import MediaSource, Messages, PoolingInput, PoolingInputs
from triptych.v1 import detokenize_pb2, generation_pb2, preprocess_pb2

_MessageT = TypeVar("_MessageT", bound=Message)

_FLAGS = {"parallel_tool_calls", "add_generation_prompt", "continue_final_message", "drop_oldest_messages"}
_CHAT = frozenset({"model", "template_kwargs", "transcription", *_FLAGS})
_COMPLETE = frozenset({"model", "echo", "add_special_tokens", "suffix"})


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
        return finished(messages, given)
    request = generation_pb2.ChatRequest(messages=chat_messages(messages, _take_media(given)))
    of.take(given, request, _CHAT)
    if (tools := given.pop("tools", None)) is not None:
        request.tools.extend(make_tools(tools))
    if (choice := given.pop("tool_choice", None)) is not None:
        request.tool_choice.CopyFrom(make_tool_choice(choice))
    for name, option in (("effort", "reasoning_effort"), ("max_tokens", "max_reasoning_tokens")):
        assign(request.reasoning, name, given.pop(option, None), option)
    request.options.CopyFrom(of.take_generation(given))
    return finished(request, given)


def build_chat_stream(
    messages: Messages | generation_pb2.ChatRequest | generation_pb2.ChatStreamRequest, options: of.ChatOptions
) -> generation_pb2.ChatStreamRequest:
    if isinstance(messages, generation_pb2.ChatStreamRequest):
        return finished(messages, options)
    return generation_pb2.ChatStreamRequest(chat=build_chat(messages, options))


def build_complete(
    prompt: str | Sequence[int] | generation_pb2.CompleteRequest, options: of.CompleteOptions
) -> generation_pb2.CompleteRequest:
    given: dict[str, Any] = {**options}
    if isinstance(prompt, generation_pb2.CompleteRequest):
        return finished(prompt, given)
    request = generation_pb2.CompleteRequest()
    _set_text(request, prompt, "prompt")
    request.media.extend(media_item(kind, source, field=f"media[{i}]") for i, (kind, source) in enumerate(_take_media(given)))
    of.take(given, request, _COMPLETE)
    request.options.CopyFrom(of.take_generation(given))
    return finished(request, given)


def build_complete_stream(
    prompt: str | Sequence[int] | generation_pb2.CompleteRequest | generation_pb2.CompleteStreamRequest, options: of.CompleteOptions
) -> generation_pb2.CompleteStreamRequest:
    if isinstance(prompt, generation_pb2.CompleteStreamRequest):
        return finished(prompt, options)
    return generation_pb2.CompleteStreamRequest(complete=build_complete(prompt, options))


def build_embed(inputs: PoolingInputs | generation_pb2.EmbedRequest, options: of.EmbedOptions) -> generation_pb2.EmbedRequest:
    return _simple(generation_pb2.EmbedRequest, "inputs", inputs, options, read=_inputs)


def build_score(
    queries: PoolingInputs | generation_pb2.ScoreRequest, documents: PoolingInputs, options: of.ScoreOptions
) -> generation_pb2.ScoreRequest:
    if not isinstance(queries, generation_pb2.ScoreRequest):
        queries, documents = _inputs(queries), _inputs(documents)
    given = {**options, "documents": documents} if documents else options
    return _simple(generation_pb2.ScoreRequest, "queries", queries, given)


def build_classify(
    inputs: PoolingInputs | generation_pb2.ClassifyRequest, options: of.ClassifyOptions
) -> generation_pb2.ClassifyRequest:
    return _simple(generation_pb2.ClassifyRequest, "inputs", inputs, options, read=_inputs)


def build_tokenize(text: str | preprocess_pb2.TokenizeRequest, options: of.TokenizeOptions) -> preprocess_pb2.TokenizeRequest:
    return _simple(preprocess_pb2.TokenizeRequest, "text", text, options)


def build_detokenize(
    token_ids: Sequence[int] | detokenize_pb2.DetokenizeRequest, options: of.DetokenizeOptions
) -> detokenize_pb2.DetokenizeRequest:
    return _simple(detokenize_pb2.DetokenizeRequest, "token_ids", token_ids, options)


def build_preprocess(
    messages: Messages | generation_pb2.ChatRequest | generation_pb2.CompleteRequest | preprocess_pb2.PreprocessRequest,
    options: of.ChatOptions,
) -> preprocess_pb2.PreprocessRequest:
    if isinstance(messages, preprocess_pb2.PreprocessRequest):
        return finished(messages, options)
    if isinstance(messages, generation_pb2.CompleteRequest):
        return finished(preprocess_pb2.PreprocessRequest(complete=messages), options)
    return preprocess_pb2.PreprocessRequest(chat=build_chat(messages, options))


def finished(request: _MessageT, rest: Mapping[str, Any]) -> _MessageT:
    """The request, unless there is a keyword that nothing has read."""
    for name in rest:
        raise TypeError(f"unexpected keyword argument {name!r}")
    return request


def _simple(
    kind: type[_MessageT], name: str, value: Any, options: Mapping[str, Any], *, read: Callable[[Any], Any] | None = None
) -> _MessageT:
    """A request with a value in the field `name`, whose options all are fields of its own; or the value, if it is a request."""
    if isinstance(value, kind):
        return finished(value, options)
    request, rest = kind(), {**options}
    assign(request, name, value if read is None else read(value))
    of.take(rest, request, frozenset(request.DESCRIPTOR.fields_by_name))
    return finished(request, rest)


def _take_media(options: dict[str, Any]) -> list[tuple[Kind, MediaSource]]:
    kinds: tuple[tuple[str, Kind], ...] = (("images", "image"), ("audio", "audio"), ("videos", "video"))
    media: list[tuple[Kind, MediaSource]] = []
    for name, kind in kinds:
        if (sources := options.pop(name, None)) is not None:
            # One picture of an array would be taken for a list of its rows.
            if getattr(sources, "ndim", 4) < 4:
                raise refused(name, sources, "a list is needed")
            media += [(kind, source) for source in listed(sources, name)]
    return media


def _set_text(message: generation_pb2.CompleteRequest | generation_pb2.EmbedInput, text: str | Sequence[int], path: str) -> None:
    """Set text or token ids."""
    if isinstance(text, str):
        assign(message, "text", text, path)
    else:
        assign(message.token_ids, "ids", listed(text, path), path)
        message.token_ids.SetInParent()


def _inputs(inputs: PoolingInputs) -> list[generation_pb2.EmbedInput]:
    """One input, or several: text, token ids, or a conversation."""
    if isinstance(inputs, str | generation_pb2.EmbedInput):
        return [_input(inputs)]
    values = listed(inputs, "inputs")
    is_one = bool(values) and isinstance(values[0], Integral | Mapping | generation_pb2.ChatMessage)
    return [_input(one) for one in ([values] if is_one else values)]


def documents(given: Sequence[PoolingInput]) -> list[generation_pb2.EmbedInput]:
    """The inputs of `rerank`, which are always several: a list of numbers or of turns is not taken for one document."""
    return [_input(one) for one in listed(given, "documents")]


def _input(value: PoolingInput) -> generation_pb2.EmbedInput:
    if isinstance(value, generation_pb2.EmbedInput):
        return value
    text = value if isinstance(value, str) else listed(value, "inputs")
    if text and not isinstance(text, str) and not isinstance(text[0], Integral):
        return generation_pb2.EmbedInput(messages=generation_pb2.ChatMessages(messages=chat_messages(text)))
    result = generation_pb2.EmbedInput()
    _set_text(result, text, "inputs")
    return result
