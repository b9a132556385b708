"""Converts the messages of Embed to the engine's own types and back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from triptych.errors import (
    ContextLengthError,
    InternalError,
    InvalidRequestError,
    RequestAbortedError,
    TriptychError,
    UnimplementedError,
)
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.model.pooling import PoolingModel, check_pooling
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.tensors import from_numpy

from triptych_engine.media.item import TEXT_ONLY, MediaTraits, Modality
from triptych_engine.rpc.convert import REQUEST_ID, check_token_ids
from triptych_engine.rpc.convert_media import to_prompt_media
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, PoolingParams, Request, SamplingParams

#: Fields of a request that mean nothing where nothing is generated.
_GENERATION_FIELDS = ("sampling", "n", "constraint")
_NO_SAMPLING = SamplingParams(max_tokens=0)


def to_pooling_requests(
    message: engine_pb2.EngineServiceEmbedRequest,
    model: common_pb2.ModelInfo,
    pooling: PoolingModel | None,
    traits: MediaTraits | str = TEXT_ONLY,
) -> list[Request]:
    """Check a call and convert it to its requests.

    Args:
        pooling: what the model does with its hidden states; None if it generates text.
        traits: traits of a model that takes media; for other models the reason why media are refused.

    Raises:
        InvalidRequestError, ContextLengthError: a field is out of its range; the error names the field.
        UnimplementedError: the model does not do what is asked for.
    """
    if pooling is None:
        raise UnimplementedError(f"{model.name} is served to generate text; serve it with --task embed for vectors", field="Embed")
    if not message.requests:
        raise InvalidRequestError("requests must not be empty", field="requests", limit=1, value=0)
    task = check_pooling(message.pooling, pooling)
    params = PoolingParams(
        per_token=task == common_pb2.TASK_TOKEN_EMBED,
        dimensions=message.pooling.dimensions if message.pooling.HasField("dimensions") else None,
        normalize=message.pooling.normalize if message.pooling.HasField("normalize") else None,
        activation=message.pooling.activation if message.pooling.HasField("activation") else True,
    )
    seconds = message.second_text_starts or [0] * len(message.requests)
    if len(seconds) != len(message.requests):
        raise InvalidRequestError(
            f"second_text_starts must be empty or have one entry per request ({len(message.requests)}); it has {len(seconds)}",
            field="second_text_starts",
            limit=len(message.requests),
            value=len(seconds),
        )
    return [
        _to_request(request, f"requests[{index}]", model, params, second, traits)
        for index, (request, second) in enumerate(zip(message.requests, seconds, strict=True))
    ]


def _to_request(
    message: engine_pb2.EngineRequest,
    field: str,
    model: common_pb2.ModelInfo,
    params: PoolingParams,
    second_text_start: int,
    traits: MediaTraits | str,
) -> Request:
    if not REQUEST_ID.fullmatch(message.request_id):
        raise InvalidRequestError(
            f"{field}.request_id must be 1 to 256 printable characters without spaces", field=f"{field}.request_id"
        )
    given = {descriptor.name for descriptor, _ in message.ListFields()}
    unread = next((name for name in _GENERATION_FIELDS if name in given), None)
    if unread:
        raise InvalidRequestError(f"{field}.{unread} is not for requests that generate nothing", field=f"{field}.{unread}")
    token_ids = list(message.prompt_token_ids)
    if not 1 <= len(token_ids) <= model.max_model_len:
        error = ContextLengthError if token_ids else InvalidRequestError
        raise error(
            f"{field}.prompt_token_ids must have 1 to {model.max_model_len} tokens; it has {len(token_ids)}",
            field=f"{field}.prompt_token_ids",
            limit=model.max_model_len,
            value=len(token_ids),
        )
    if second_text_start >= len(token_ids):
        raise InvalidRequestError(
            f"second_text_starts of {field} must be below its {len(token_ids)} tokens; given: {second_text_start}",
            field="second_text_starts",
            limit=len(token_ids) - 1,
            value=second_text_start,
        )
    check_token_ids(token_ids, f"{field}.prompt_token_ids", model.vocab_size)
    try:
        media = to_prompt_media(message, token_ids, traits)
    except TriptychError as error:
        raise in_call(error, field) from error
    return Request(
        request_id=message.request_id,
        prompt_token_ids=token_ids,
        media=media,
        sampling=_NO_SAMPLING,
        priority=message.priority,
        cache_salt=Principal(message.context.tenant).scoped_salt(message.cache_salt),
        tenant=message.context.tenant,
        pooling=replace(params, second_text_start=second_text_start) if second_text_start else params,
    )


def in_call(error: TriptychError, field: str) -> TriptychError:
    """The error of one request, which names the request among those of its call."""
    if not error.field:
        return error
    message, path = f"{field}: {error.message}", f"{field}.{error.field}"
    return type(error)(message, field=path, limit=error.limit, value=error.value, retry_after_s=error.retry_after_s)


def add_usage(usage: common_pb2.Usage, output: SequenceOutput) -> None:
    """Add what a request used to the usage of its call."""
    usage.prompt_tokens += output.usage[0] if output.usage else 0
    if output.media is not None:
        usage.image_tokens += output.media.num_tokens.get(Modality.IMAGE, 0)
        usage.audio_tokens += output.media.num_tokens.get(Modality.AUDIO, 0)
        usage.video_tokens += output.media.num_tokens.get(Modality.VIDEO, 0)


def pooled_tensor(output: SequenceOutput, field: str) -> common_pb2.Tensor:
    """What a request asked for. Raises the error of a request that failed, and RequestAbortedError for one that was aborted.

    Args:
        field: the request's name in errors.
    """
    if output.error is not None:
        raise in_call(output.error, field) if isinstance(output.error, TriptychError) else output.error
    if output.finish_reason is FinishReason.ABORT:
        raise RequestAbortedError("the request was aborted")
    if output.pooled is None:
        raise InternalError("the engine computed nothing for this request")
    if not np.isfinite(output.pooled).all():
        raise InternalError(f"{field}: the model computes values that are no finite numbers", field=field)
    return from_numpy(output.pooled)
