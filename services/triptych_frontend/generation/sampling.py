"""Checks a client's generation options and fills in defaults, before the request goes to the engine.

The defaults are the contract's. The setting `generation_config` puts those of the model's generation_config.json before them
(preparation/options.py).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from triptych.errors import ContextLengthError, InvalidRequestError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.limits import MAX_BAD_SEQUENCES, MAX_CHOICES, MAX_LOGPROBS, MAX_STOP_CHARS, MAX_STOP_STRINGS

from triptych_frontend.conversation.formats.calls import ParserOptions
from triptych_frontend.conversation.reasoning import ReasoningLimit
from triptych_frontend.errors import check_count, check_range, refusal
from triptych_frontend.output.chain import OutputOptions

#: Longest of `bad_token_sequences`.
MAX_BAD_SEQUENCE_TOKENS = 64
_FIELD = "options.sampling"

#: 0.01 as the float32 in the message, which is slightly smaller.
_LEAST_REPETITION_PENALTY = common_pb2.SamplingParams(repetition_penalty=0.01).repetition_penalty
#: field -> least value, greatest value, and whether the least value itself is out of range
_RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0, 100, False),
    "top_p": (0, 1, True),
    "min_p": (0, 1, False),
    "presence_penalty": (-2, 2, False),
    "frequency_penalty": (-2, 2, False),
    "repetition_penalty": (_LEAST_REPETITION_PENALTY, 10, False),
    "logprobs": (0, MAX_LOGPROBS, False),
    "prompt_logprobs": (0, MAX_LOGPROBS, False),
}
_MAX_LOGIT_BIAS = 100.0


@dataclass(frozen=True)
class GenerationParams:
    """Checked options of a generation, with defaults filled in."""

    #: As the client sent it. `for_engine` completes it.
    sampling: common_pb2.SamplingParams
    output: OutputOptions
    num_choices: int
    #: Only the likeliest choices are sent.
    is_best_of: bool
    is_final_only: bool
    return_token_ids: bool
    #: Those that need no check.
    options: generation_pb2.GenerationOptions
    #: None: as long as the model likes.
    reasoning: ReasoningLimit | None = None

    @cached_property
    def wants_logprobs(self) -> bool:
        return self.sampling.HasField("logprobs")

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.HasField("prompt_logprobs")

    def reading(self, parser: ParserOptions | None, reasoning: ReasoningLimit | None) -> GenerationParams:
        """The same, for answers that are read by this parser, and whose reasoning has this limit."""
        return replace(self, output=replace(self.output, parser=parser), reasoning=reasoning)

    def for_engine(self, max_tokens: int | None) -> common_pb2.SamplingParams:
        """The parameters for the engine, with the frontend's bound on tokens if it sets one."""
        sampling = common_pb2.SamplingParams()
        sampling.CopyFrom(self.sampling)
        if self.is_best_of and not self.wants_logprobs:
            sampling.logprobs = 0
        if max_tokens is not None:
            sampling.max_tokens = max_tokens
        if not sampling.HasField("seed"):
            # So that another engine can go on with the same random numbers.
            sampling.seed = secrets.randbits(63)
        return sampling


def check_options(
    options: generation_pb2.GenerationOptions,
    vocab_size: int,
    echo: bool = False,
    is_final_only: bool = False,
    best_of: int | None = None,
) -> GenerationParams:
    """The checked options. Raises InvalidRequestError, which names field, limit and value.

    Args:
        echo: the answer includes the prompt's text, and its log probabilities if those of the output are asked for.
        is_final_only: answer each choice once, when it has ended.
        best_of: choices to generate, if not all of them are sent.
    """
    sampling = common_pb2.SamplingParams()
    sampling.CopyFrom(options.sampling)
    _check_ranges(sampling)
    _check_tokens(sampling, vocab_size)
    if echo and sampling.HasField("logprobs") and not sampling.HasField("prompt_logprobs"):
        sampling.prompt_logprobs = sampling.logprobs
    num_choices = options.n if options.HasField("n") else 1
    check_range("options.n", num_choices, 1, MAX_CHOICES)
    return GenerationParams(
        sampling=sampling,
        output=OutputOptions(
            stop=_stop_strings(options.stop),
            include_stop=options.include_stop_in_output,
            skip_special_tokens=options.skip_special_tokens if options.HasField("skip_special_tokens") else True,
            min_tokens=sampling.min_tokens,
        ),
        num_choices=num_choices if best_of is None else best_of,
        is_best_of=best_of is not None,
        is_final_only=is_final_only,
        return_token_ids=options.return_token_ids,
        options=options,
    )


def max_output_tokens(
    sampling: common_pb2.SamplingParams, num_prompt_tokens: int, max_model_len: int, prompt_field: str, is_clamped: bool = False
) -> int:
    """Most tokens to generate: the requested number, else the rest of the context. Raises ContextLengthError.

    Args:
        is_clamped: if the requested number does not fit, generate as many as fit.
    """
    left = max_model_len - num_prompt_tokens
    asked = sampling.max_tokens if sampling.HasField("max_tokens") else None
    if is_clamped and asked is not None and asked > left:
        asked = None
    if left < 0 or (asked is None and left == 0):
        message = f"the prompt has {num_prompt_tokens} tokens, and the model's context is {max_model_len} tokens, output included"
        raise ContextLengthError(message, field=prompt_field, limit=max_model_len, value=num_prompt_tokens)
    if asked is None:
        return left
    if asked > left:
        raise ContextLengthError(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {asked}, together "
            f"{num_prompt_tokens + asked}, more than the model's context of {max_model_len} tokens",
            field=f"{_FIELD}.max_tokens",
            limit=max_model_len,
            value=num_prompt_tokens + asked,
        )
    return asked


def _check_ranges(sampling: common_pb2.SamplingParams) -> None:
    for name, (least, most, is_open) in _RANGES.items():
        if sampling.HasField(name):
            check_range(f"{_FIELD}.{name}", getattr(sampling, name), least, most, is_open)
    # A bias for each token of a large vocabulary must not hold the event loop up.
    is_fair = all(-_MAX_LOGIT_BIAS <= bias <= _MAX_LOGIT_BIAS for bias in sampling.logit_bias.values())
    for token_id, bias in () if is_fair else sampling.logit_bias.items():
        check_range(f"{_FIELD}.logit_bias[{token_id}]", bias, -_MAX_LOGIT_BIAS, _MAX_LOGIT_BIAS)
    if sampling.HasField("max_tokens") and sampling.min_tokens > sampling.max_tokens:
        message = f"min_tokens must not be more than max_tokens ({sampling.max_tokens}); given: {sampling.min_tokens}"
        raise InvalidRequestError(message, field=f"{_FIELD}.min_tokens", limit=sampling.max_tokens, value=sampling.min_tokens)


def _check_tokens(sampling: common_pb2.SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that are not in the vocabulary, and drop duplicates."""
    _check_token_ids(f"{_FIELD}.logit_bias", sampling.logit_bias, vocab_size)
    for name in ("allowed_token_ids", "bad_token_ids", "first_bad_token_ids", "stop_token_ids"):
        field, token_ids = f"{_FIELD}.{name}", getattr(sampling, name)
        if len(token_ids) > vocab_size:
            problem = f"may have at most as many token ids as the vocabulary, {vocab_size}; given: {len(token_ids)}"
            raise refusal(field, problem, vocab_size, len(token_ids))
        _check_token_ids(field, token_ids, vocab_size)
        token_ids[:] = dict.fromkeys(token_ids)
    _check_bad_sequences(sampling, vocab_size)


def _check_bad_sequences(sampling: common_pb2.SamplingParams, vocab_size: int) -> None:
    name, sequences = f"{_FIELD}.bad_token_sequences", sampling.bad_token_sequences
    check_count(name, len(sequences), MAX_BAD_SEQUENCES, "sequences")
    for index, sequence in enumerate(sequences):
        field = f"{name}[{index}]"
        check_count(field, len(sequence.token_ids), MAX_BAD_SEQUENCE_TOKENS, "token ids", least=1)
        _check_token_ids(field, sequence.token_ids, vocab_size)


def _check_token_ids(field: str, token_ids: Iterable[int], vocab_size: int) -> None:
    for token_id in token_ids if max(token_ids, default=0) >= vocab_size else ():
        if token_id >= vocab_size:
            message = f"token ids in {field} must be below the vocabulary's size of {vocab_size}; given: {token_id}"
            raise InvalidRequestError(message, field=field, limit=vocab_size - 1, value=token_id)


def _stop_strings(stop: Iterable[str]) -> tuple[str, ...]:
    stops = tuple(stop)
    check_count("options.stop", len(stops), MAX_STOP_STRINGS, "strings")
    for index, text in enumerate(stops):
        check_count(f"options.stop[{index}]", len(text), MAX_STOP_CHARS, "characters", least=1)
    return stops
