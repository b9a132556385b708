"""Converts protobuf messages to the engine's own types and back. Checks what depends only on the request and the model's limits."""

from __future__ import annotations

import ctypes
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from triptych.errors import ContextLengthError, InvalidRequestError, ModelNotFoundError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common.rpc.principal import Principal
from triptych_common.rpc.status import to_request_error

from triptych_engine.load import Load
from triptych_engine.media.item import TEXT_ONLY, MediaTraits
from triptych_engine.rpc.convert_media import put_media_usage, to_prompt_media
from triptych_engine.rpc.convert_rules import to_bad_sequences, to_constraint
from triptych_engine.scheduling.output import SequenceOutput
from triptych_engine.scheduling.request import FinishReason, Request, SamplingParams, TokenLogprobs

_FINISH_REASONS = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
    FinishReason.ABORT: common_pb2.FINISH_REASON_ABORT,
    FinishReason.ERROR: common_pb2.FINISH_REASON_ERROR,
}

#: field -> (default, smallest, largest). Ranges as in common.proto.
_RANGES: dict[str, tuple[float, float, float]] = {
    "temperature": (1.0, 0.0, 100.0),
    "top_p": (1.0, 0.0, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "presence_penalty": (0.0, -2.0, 2.0),
    "frequency_penalty": (0.0, -2.0, 2.0),
    "repetition_penalty": (1.0, 0.01, 10.0),
}
_POSITIVE = ("top_p",)
MAX_LOGPROBS = 20
MAX_SEQUENCES = 128
REQUEST_ID = re.compile(r"[!-~]{1,256}")
#: Temperatures below this are greedy: dividing by them would overflow.
_SMALLEST_TEMPERATURE = 1e-4


def to_requests(
    message: engine_pb2.EngineRequest, model: common_pb2.ModelInfo, capacity_tokens: int, traits: MediaTraits | str = TEXT_ONLY
) -> list[Request]:
    """Check a request message and convert it to one `Request` for each of its sequences.

    Args:
        capacity_tokens: longest sequence that the KV cache holds.
        traits: traits of a model that takes media; for other models the reason why media are refused.

    Raises:
        InvalidRequestError, ContextLengthError: a field is out of its range; the error names the field.
        UnimplementedError: the model does not take the media.
        ModelNotFoundError: the engine takes no adapters.
    """
    if not REQUEST_ID.fullmatch(message.request_id):
        raise InvalidRequestError("request_id must be 1 to 256 printable characters without spaces", field="request_id")
    prompt = list(message.prompt_token_ids)
    if not prompt:
        raise InvalidRequestError("prompt_token_ids must not be empty", field="prompt_token_ids")
    if message.lora and not model.capabilities.lora:
        raise ModelNotFoundError(f"{model.name} is served without adapters (lora_dir)", field="lora", value=message.lora[:100])
    num_carried = message.num_output_tokens
    if num_carried >= len(prompt):
        told = f"num_output_tokens must be less than the number of prompt_token_ids ({len(prompt)}); given: {num_carried}"
        raise InvalidRequestError(told, field="num_output_tokens", limit=len(prompt) - 1, value=num_carried)
    n = message.n if message.HasField("n") else 1
    if not 1 <= n <= MAX_SEQUENCES:
        limits = f"[1, {MAX_SEQUENCES}]"
        raise InvalidRequestError(f"n must be in {limits}; given: {n}", field="n", limit=limits, value=n)
    if num_carried and n > 1:
        raise InvalidRequestError(f"num_output_tokens: only with n = 1; given: {n}", field="num_output_tokens", limit=1, value=n)
    check_token_ids(prompt, "prompt_token_ids", model.vocab_size)
    prompt, carried = prompt[: len(prompt) - num_carried], prompt[len(prompt) - num_carried :]
    sampling = _to_sampling(message.sampling, len(prompt), model, capacity_tokens)
    if num_carried and num_carried >= sampling.max_tokens:
        told = f"num_output_tokens must be less than max_tokens ({sampling.max_tokens}); given: {num_carried}"
        raise InvalidRequestError(told, field="num_output_tokens", limit=sampling.max_tokens - 1, value=num_carried)
    sampling = replace(sampling, constraint=to_constraint(message, model.vocab_size))
    has_seed = message.sampling.HasField("seed")
    return [
        Request(
            request_id=sequence_id(message.request_id, index, n),
            prompt_token_ids=prompt,
            carried_token_ids=carried,
            # The items hold state of their sequence, so each sequence has its own items.
            media=to_prompt_media(message, prompt, traits),
            sampling=_of_sequence(sampling, index, has_seed) if index else sampling,
            priority=message.priority,
            # Tenants never share keys and values, whatever salt they choose.
            cache_salt=Principal(message.context.tenant).scoped_salt(message.cache_salt),
            tenant=message.context.tenant,
            lora=message.lora,
        )
        for index in range(n)
    ]


def sequence_id(request_id: str, index: int, n: int) -> str:
    """The engine's own id of one sequence. Request ids have no spaces, so the ids of two sequences always differ."""
    return request_id if n == 1 else f"{request_id} {index}"


def num_refusals(message: engine_pb2.EngineRequest) -> int:
    """How many outputs a refused request gets: one for each of its sequences."""
    return min(max(message.n, 1), MAX_SEQUENCES)


def _of_sequence(sampling: SamplingParams, index: int, has_seed: bool) -> SamplingParams:
    return replace(sampling, seed=(sampling.seed + index) % 2**64 if has_seed else secrets.randbits(64))


def _to_sampling(
    message: common_pb2.SamplingParams, num_prompt_tokens: int, model: common_pb2.ModelInfo, capacity_tokens: int
) -> SamplingParams:
    values: dict[str, Any] = {name: _ranged(message, name, *limits) for name, limits in _RANGES.items()}
    if values["temperature"] < _SMALLEST_TEMPERATURE:
        values["temperature"] = 0.0
    vocab_size = model.vocab_size
    check_token_ids(message.allowed_token_ids, "sampling.allowed_token_ids", vocab_size)
    check_token_ids(message.bad_token_ids, "sampling.bad_token_ids", vocab_size)
    bad_by_itself, bad_sequences = to_bad_sequences(message, vocab_size)
    bad_token_ids = {*message.bad_token_ids, *bad_by_itself}
    check_token_ids(message.first_bad_token_ids, "sampling.first_bad_token_ids", vocab_size)
    check_token_ids(message.stop_token_ids, "sampling.stop_token_ids", vocab_size)
    check_token_ids(message.logit_bias, "sampling.logit_bias", vocab_size)
    for token_id, bias in message.logit_bias.items():
        if not -100 <= bias <= 100:
            raise InvalidRequestError(
                f"sampling.logit_bias[{token_id}] must be in [-100, 100]; given: {bias:g}", field="sampling.logit_bias", value=bias
            )
    stop_token_ids = set(message.stop_token_ids)
    if not message.ignore_eos:
        # Some configurations have EOS tokens for which the model has no logit.
        stop_token_ids.update(token_id for token_id in model.eos_token_ids if token_id < vocab_size)
    max_tokens = _max_tokens(message, num_prompt_tokens, model.max_model_len, capacity_tokens)
    if message.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"sampling.min_tokens must be at most max_tokens ({max_tokens}); given: {message.min_tokens}",
            field="sampling.min_tokens", limit=max_tokens, value=message.min_tokens,
        )  # fmt: skip
    held_back = stop_token_ids if message.min_tokens else set()
    _check_something_is_left(set(message.allowed_token_ids), bad_token_ids | held_back, vocab_size)
    return SamplingParams(
        **values,
        max_tokens=max_tokens,
        min_tokens=message.min_tokens,
        top_k=min(message.top_k, vocab_size),
        logit_bias=dict(message.logit_bias),
        allowed_token_ids=tuple(message.allowed_token_ids),
        bad_token_ids=tuple(bad_token_ids),
        bad_token_sequences=bad_sequences,
        first_bad_token_ids=tuple(message.first_bad_token_ids),
        stop_token_ids=frozenset(stop_token_ids),
        seed=message.seed % 2**64 if message.HasField("seed") else secrets.randbits(64),
        logprobs=_num_logprobs(message, "logprobs"),
        prompt_logprobs=_num_logprobs(message, "prompt_logprobs"),
    )


def _check_something_is_left(allowed: set[int], banned: set[int], vocab_size: int) -> None:
    """Refuse bans that leave no token to generate. `banned` includes the stop tokens if min_tokens bans them at first."""
    if (allowed and allowed <= banned) or len(banned) >= vocab_size:
        what = "sampling.allowed_token_ids" if allowed else "the vocabulary"
        raise InvalidRequestError(
            f"sampling.bad_token_ids and, before min_tokens, the stop tokens leave nothing of {what} to generate",
            field="sampling.bad_token_ids",
        )


def _ranged(message: common_pb2.SamplingParams, name: str, default: float, low: float, high: float) -> float:
    if not message.HasField(name):
        return default
    value: float = getattr(message, name)
    excluded = name in _POSITIVE and value == low
    # The field is float32: 0.01 arrives as 0.0099999998.
    if not math.isfinite(value) or not ctypes.c_float(low).value <= value <= high or excluded:
        bracket = "(" if name in _POSITIVE else "["
        raise InvalidRequestError(
            f"sampling.{name} must be in {bracket}{low:g}, {high:g}]; given: {value:g}",
            field=f"sampling.{name}", limit=f"{bracket}{low:g}, {high:g}]", value=f"{value:g}",
        )  # fmt: skip
    return value


def _num_logprobs(message: common_pb2.SamplingParams, name: str) -> int | None:
    if not message.HasField(name):
        return None
    value: int = getattr(message, name)
    if value > MAX_LOGPROBS:
        raise InvalidRequestError(
            f"sampling.{name} must be at most {MAX_LOGPROBS}; given: {value}",
            field=f"sampling.{name}",
            limit=MAX_LOGPROBS,
            value=value,
        )
    return value


def _max_tokens(message: common_pb2.SamplingParams, num_prompt_tokens: int, max_model_len: int, capacity_tokens: int) -> int:
    # A prompt that fills the context is only accepted if max_tokens is 0.
    wanted = message.max_tokens if message.HasField("max_tokens") else None
    if num_prompt_tokens + (1 if wanted is None else wanted) > max_model_len:
        output = "at least 1" if wanted is None else wanted
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and {output} output tokens are asked for; "
            f"the model's context is {max_model_len} tokens",
            field="sampling.max_tokens" if wanted else "prompt_token_ids",
            limit=max_model_len,
            value=num_prompt_tokens + (1 if wanted is None else wanted),
        )
    # The default is what context and KV cache leave. One more token fits: the last one is never an input, so it needs no KV slot.
    return min(max_model_len, max(capacity_tokens, num_prompt_tokens) + 1) - num_prompt_tokens if wanted is None else wanted


def check_token_ids(token_ids: Iterable[int], field: str, vocab_size: int) -> None:
    for index, token_id in enumerate(token_ids):
        if token_id >= vocab_size:
            raise InvalidRequestError(
                f"{field}[{index}] is {token_id}; the vocabulary has {vocab_size} tokens",
                field=field,
                limit=vocab_size - 1,
                value=token_id,
            )


def output_message(output: SequenceOutput, request_id: str, index: int = 0) -> engine_pb2.SequenceOutput:
    """The output as a protobuf message, with the client's request id and index of the sequence."""
    message = engine_pb2.SequenceOutput(request_id=request_id, index=index, token_ids=output.token_ids)
    if output.logprobs:
        message.logprobs.extend(map(_logprobs_message, output.logprobs))
    if output.prompt_logprobs:
        message.prompt_logprobs.extend(map(_logprobs_message, output.prompt_logprobs))
    if output.usage is not None:
        prompt_tokens, completion_tokens, cached_tokens = output.usage
        message.usage.prompt_tokens, message.usage.completion_tokens = prompt_tokens, completion_tokens
        message.usage.cached_tokens = cached_tokens
    if output.finish_reason is not None:
        message.finish_reason = _FINISH_REASONS[output.finish_reason]
        if output.stop_token_id is not None:
            message.stop_token_id = output.stop_token_id
        if output.media is not None:
            put_media_usage(message, output.media)
        if output.timings is not None:
            timings = output.timings
            message.timings.CopyFrom(
                common_pb2.Timings(
                    queue_s=timings.queue_s,
                    prefill_s=timings.prefill_s,
                    decode_s=timings.decode_s,
                    num_preemptions=timings.num_preemptions,
                )
            )
        if output.error is not None:
            message.error.CopyFrom(to_request_error(output.error))
    return message


def _logprobs_message(entry: TokenLogprobs) -> engine_pb2.TokenLogprobs:
    return engine_pb2.TokenLogprobs(
        token_id=entry.token_id,
        logprob=entry.logprob,
        rank=entry.rank,
        top_token_ids=entry.top_token_ids,
        top_logprobs=entry.top_logprobs,
    )


def load_message(load: Load) -> engine_pb2.Load:
    """The load as a protobuf message."""
    return engine_pb2.Load(**{name: getattr(load, name) for name in Load.__dataclass_fields__})
