"""Keyword options of calls, and how they become fields of the contracts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from google.protobuf.message import Message

from triptych.errors import InvalidRequestError
from triptych.requests.fields import JsonSchema, assign, json_text, listed, refused
from triptych.requests.types import MediaSource
from triptych.v1 import common_pb2, generation_pb2


class CallOptions(TypedDict, total=False):
    """Options of every call.

    timeout_s: deadline of the call, in seconds. Default: the client's. `math.inf`: none.
    request_id: sent as `x-request-id`. Default: a new one.
    metadata: further metadata. Values of keys that end in `-bin` are bytes.
    on_trailers: gets the trailing metadata of a call that has answered, as pairs. Streams have `trailing_media` instead.
    """

    timeout_s: float
    request_id: str
    metadata: Mapping[str, str | bytes]
    on_trailers: Callable[[Sequence[tuple[str, str | bytes]]], object]


class GenerationKeywords(TypedDict, total=False):
    """Fields of `SamplingParams`, `GenerationOptions` and `Constraint` of the contracts, by their names there."""

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_token_ids: Sequence[int] | None
    first_bad_token_ids: Sequence[int] | None
    bad_token_sequences: Sequence[Sequence[int]] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    seed: int | None
    logprobs: int | None
    prompt_logprobs: int | None
    stop: str | Sequence[str] | None
    include_stop_in_output: bool | None
    skip_special_tokens: bool | None
    n: int | None
    return_token_ids: bool | None
    priority: int | None
    cache_salt: str | None
    affinity_key: str | None
    bad_words: Sequence[str] | None
    truncate_prompt_tokens: int | None
    best_of: int | None
    beam_search: generation_pb2.BeamSearch | None
    clamp_max_tokens: bool | None
    json_schema: JsonSchema | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    constraint: common_pb2.Constraint | None


class MediaKeywords(TypedDict, total=False):
    """Media of a prompt that is one string. In a chat they stand before its text, in a completion it has a placeholder for each."""

    images: Sequence[MediaSource] | None
    audio: Sequence[MediaSource] | None
    videos: Sequence[MediaSource] | None


class ChatOptions(GenerationKeywords, MediaKeywords, total=False):
    """Options of chats: those of generation, and fields of `ChatRequest`.

    tools: `generation_pb2.Tool`, or OpenAI's dictionaries.
    tool_choice: "auto", "none", "required", a tool's name as `{"type": "function", "function": {"name": ...}}`, or a `ToolChoice`.
    reasoning_effort, max_reasoning_tokens: fields of `Reasoning`.
    """

    model: str | None
    tools: Sequence[generation_pb2.Tool | Mapping[str, Any]] | None
    tool_choice: Literal["auto", "none", "required"] | Mapping[str, Any] | generation_pb2.ToolChoice | None
    parallel_tool_calls: bool | None
    template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    reasoning_effort: str | None
    max_reasoning_tokens: int | None
    drop_oldest_messages: bool | None
    transcription: generation_pb2.Transcription | None


class CompleteOptions(GenerationKeywords, MediaKeywords, total=False):
    """Options of completions: those of generation, and fields of `CompleteRequest`."""

    model: str | None
    echo: bool | None
    add_special_tokens: bool | None
    suffix: str | None


class PoolingOptions(TypedDict, total=False):
    """Fields that `EmbedRequest`, `ScoreRequest` and `ClassifyRequest` have in common."""

    model: str | None
    truncate_to: int | None
    priority: int | None
    cache_salt: str | None


class EmbedOptions(PoolingOptions, total=False):
    """Fields of `EmbedRequest`."""

    dimensions: int | None
    normalize: bool | None
    task: common_pb2.Task | None
    packed: bool | None
    add_special_tokens: bool | None


class ScoreOptions(PoolingOptions, total=False):
    """Fields of `ScoreRequest`."""

    activation: bool | None


class ClassifyOptions(PoolingOptions, total=False):
    """Fields of `ClassifyRequest`."""

    activation: bool | None
    add_special_tokens: bool | None


class TokenizeOptions(TypedDict, total=False):
    """Fields of `TokenizeRequest`."""

    model: str | None
    add_special_tokens: bool | None
    parse_special_tokens: bool | None


class DetokenizeOptions(TypedDict, total=False):
    """Fields of `DetokenizeRequest`."""

    model: str | None
    skip_special_tokens: bool | None


class ChatCallOptions(ChatOptions, CallOptions, total=False):
    """Options of `chat`, `chat_stream` and `preprocess`."""


class CompleteCallOptions(CompleteOptions, CallOptions, total=False):
    """Options of `complete` and `complete_stream`."""


class EmbedCallOptions(EmbedOptions, CallOptions, total=False):
    """Options of `embed`."""


class ScoreCallOptions(ScoreOptions, CallOptions, total=False):
    """Options of `score` and `rerank`."""


class ClassifyCallOptions(ClassifyOptions, CallOptions, total=False):
    """Options of `classify`."""


class TokenizeCallOptions(TokenizeOptions, CallOptions, total=False):
    """Options of `tokenize`."""


class DetokenizeCallOptions(DetokenizeOptions, CallOptions, total=False):
    """Options of `detokenize`."""


_SAMPLING = frozenset(common_pb2.SamplingParams.DESCRIPTOR.fields_by_name)
_GENERATION = frozenset(generation_pb2.GenerationOptions.DESCRIPTOR.fields_by_name) - {"sampling", "constraint"}
_CONSTRAINT = ("json_schema", "json_object", "regex", "choice", "grammar", "constraint")


def take(options: dict[str, Any], message: Message, names: frozenset[str]) -> None:
    """Move the options of these names into the message's fields of the same names."""
    for name in [name for name in options if name in names]:
        assign(message, name, options.pop(name))


def take_generation(options: dict[str, Any]) -> generation_pb2.GenerationOptions:
    """Take the options of `GenerationKeywords` out of `options`."""
    message = generation_pb2.GenerationOptions()
    if isinstance(stop := options.get("stop"), str):
        options["stop"] = [stop]
    if (sequences := options.pop("bad_token_sequences", None)) is not None:
        for i, token_ids in enumerate(listed(sequences, "bad_token_sequences")):
            assign(message.sampling.bad_token_sequences.add(), "token_ids", token_ids, f"bad_token_sequences[{i}]")
    take(options, message.sampling, _SAMPLING)
    take(options, message, _GENERATION)
    _take_constraint(options, message)
    return message


def _take_constraint(options: dict[str, Any], message: generation_pb2.GenerationOptions) -> None:
    """Take the one constraint that is given. Raises InvalidRequestError if two are."""
    given = {name: value for name in _CONSTRAINT if (value := options.pop(name, None)) is not None}
    if len(given) > 1:
        raise InvalidRequestError(f"only one of {' and '.join(sorted(given))} can be given", field="options.constraint")
    for kind, value in given.items():
        if kind == "constraint":
            if not isinstance(value, common_pb2.Constraint):
                raise refused("constraint", value, "a Constraint is needed")
            message.constraint.CopyFrom(value)
        elif kind == "choice":
            assign(message.constraint.choice, "values", value, "choice")
            message.constraint.choice.SetInParent()
        else:
            assign(message.constraint, kind, json_text(value, kind) if kind == "json_schema" else value)
