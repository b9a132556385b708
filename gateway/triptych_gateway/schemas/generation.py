"""The fields that /v1/chat/completions and /v1/completions share.

Every field of OpenAI's and vLLM's requests is declared. A field is either honoured, or accepted only with a value that has no
effect (`NoOp`). Undeclared fields are refused. null always means "not given".
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from triptych_common.limits import MAX_BAD_WORDS, MAX_CHOICES, MAX_LOGPROBS

from triptych_gateway.schemas.common import (
    UINT32_MAX,
    LogitBias,
    NoOp,
    Schema,
    StopStrings,
    TokenIdList,
    at,
)
from triptych_gateway.schemas.structured import ResponseFormat, StructuredOutputs

_GUIDED = "vLLM removed it; send structured_outputs"


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: Annotated[bool | None, Field(description="End with a chunk that has no choices but the usage.")] = None
    continuous_usage_stats: Annotated[bool | None, Field(description="With include_usage: every chunk has the usage so far.")] = (
        None
    )
    include_obfuscation: Annotated[Any, NoOp(False)] = None


class GenerationRequest(Schema):
    """The fields that /v1/chat/completions and /v1/completions share."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    stream: Annotated[bool | None, Field(description="Send server-sent events as text appears.")] = None
    stream_options: Annotated[StreamOptions | None, Field(description="Only with stream.")] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_CHOICES, description="Choices to send. Default 1.")] = None
    best_of: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAX_CHOICES,
            description="Choices to generate, of which the n likeliest are sent. With use_beam_search: beams. Default n. "
            "More than n only without stream.",
        ),
    ] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="Divides the logits; 0 is greedy. Default 1.")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Smallest set of tokens with this probability. Default 1.")] = None
    presence_penalty: Annotated[
        float | None, Field(ge=-2, le=2, description="Subtracted once from the logit of each generated token. Default 0.")
    ] = None
    frequency_penalty: Annotated[
        float | None, Field(ge=-2, le=2, description="Subtracted from a token's logit for each time it was generated. Default 0.")
    ] = None
    logit_bias: Annotated[
        LogitBias | None, Field(description="Token id -> bias in [-100, 100] that is added to its logit. At most 4,096 tokens.")
    ] = None
    seed: Annotated[
        int | None, Field(ge=-(2**63), le=2**63 - 1, description="Same seed, same random numbers; choice i uses seed + i.")
    ] = None
    stop: Annotated[
        StopStrings | None,
        Field(description="Up to 16 strings of up to 1,024 characters that end a choice; they are not sent."),
    ] = None
    user: Annotated[str | None, Field(description="The client's own label of its end user; it changes nothing here.")] = None

    # Extensions of OpenAI's API, with vLLM's names.
    top_k: Annotated[int | None, Field(ge=-1, le=UINT32_MAX, description="Keep the k likeliest tokens; 0 and -1 keep all.")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, description="Drop tokens less likely than this share of the likeliest.")] = (
        None
    )
    repetition_penalty: Annotated[
        float | None,
        Field(
            ge=0.01, le=10, description="Divides positive and multiplies negative logits of prompt and output tokens. Default 1."
        ),
    ] = None
    min_tokens: Annotated[int | None, Field(ge=0, le=UINT32_MAX, description="Tokens before a stop token may end a choice.")] = None
    ignore_eos: Annotated[bool | None, Field(description="Go on past the model's own end-of-sequence tokens.")] = None
    stop_token_ids: Annotated[TokenIdList | None, Field(description="Tokens that end a choice.")] = None
    allowed_token_ids: Annotated[
        Annotated[TokenIdList, Field(min_length=1)] | None, Field(description="Only these tokens can be generated.")
    ] = None
    skip_special_tokens: Annotated[bool | None, Field(description="Leave special tokens out of the text. Default true.")] = None
    include_stop_str_in_output: Annotated[bool | None, Field(description="Send the stop string too.")] = None
    priority: Annotated[int | None, Field(ge=-(2**31), le=2**31 - 1, description="Lower runs first. Default 0.")] = None
    cache_salt: Annotated[
        str | None, Field(min_length=1, description="Prefix-cache blocks are shared only between requests of the same salt.")
    ] = None
    return_token_ids: Annotated[
        bool | None, Field(description="Send the ids of the output tokens as `token_ids` of each choice.")
    ] = None

    response_format: Annotated[ResponseFormat | None, Field(description="The format of the output. Default: text.")] = None
    structured_outputs: Annotated[StructuredOutputs | None, Field(description="A constraint on the output.")] = None
    prompt_logprobs: Annotated[
        int | None,
        Field(
            ge=0, le=MAX_LOGPROBS, description="Log probabilities of prompt tokens and of so many alternatives. Not with stream."
        ),
    ] = None
    bad_words: Annotated[
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None,
        Field(description="Words that are never generated, also with a space before them."),
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Field(
            ge=-1,
            le=2**31 - 1,
            description="Keep only this many last tokens of the prompt; -1: as many as fit. By default a longer prompt is "
            "refused. Not with media.",
        ),
    ] = None
    use_beam_search: Annotated[bool | None, Field(description="Find the n likeliest texts. Not with stream.")] = None
    length_penalty: Annotated[
        float | None,
        Field(ge=-10, le=10, description="With use_beam_search: a text's score is divided by its length to this power. Default 1."),
    ] = None

    # Fields of vLLM that ask for what is not here.
    spaces_between_special_tokens: Annotated[Any, NoOp(True)] = None
    logits_processors: Annotated[Any, NoOp([])] = None
    return_tokens_as_token_ids: Annotated[Any, NoOp(False, because="send return_token_ids")] = None
    request_id: Annotated[Any, NoOp(because="send the header x-request-id")] = None
    kv_transfer_params: Annotated[Any, NoOp()] = None
    vllm_xargs: Annotated[Any, NoOp({})] = None
    guided_json: Annotated[Any, NoOp(because=_GUIDED)] = None
    guided_regex: Annotated[Any, NoOp(because=_GUIDED)] = None
    guided_choice: Annotated[Any, NoOp(because=_GUIDED)] = None
    guided_grammar: Annotated[Any, NoOp(because=_GUIDED)] = None
    guided_decoding_backend: Annotated[Any, NoOp(because="there is one backend")] = None
    guided_whitespace_pattern: Annotated[Any, NoOp(because=_GUIDED)] = None

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether each chunk of a streamed answer has the usage so far."""
        return self.include_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)

    @property
    def token_limit(self) -> int | None:
        """The client's limit on output tokens per choice."""
        raise NotImplementedError

    @property
    def token_limit_name(self) -> str:
        """The field that the limit came in."""
        return "max_tokens"

    @model_validator(mode="after")
    def _options_fit_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise at("stream_options", "only allowed when stream is true")
        if self.min_tokens and self.token_limit is not None and self.min_tokens > self.token_limit:
            raise at("min_tokens", f"must not be more than {self.token_limit_name} ({self.token_limit}); given: {self.min_tokens}")
        if self.truncate_prompt_tokens == 0:
            raise at("truncate_prompt_tokens", "must be -1 or at least 1; given: 0")
        if self.structured_outputs is not None and self.response_format is not None and self.response_format.type != "text":
            raise at("structured_outputs", "cannot be sent together with response_format; both constrain the output")
        return self

    @model_validator(mode="after")
    def _choices_fit_together(self) -> Self:
        if self.best_of is not None and self.best_of < self.num_choices:
            raise at("best_of", f"must be at least n ({self.num_choices}); given: {self.best_of}")
        if self.length_penalty not in (None, 1) and not self.use_beam_search:
            raise at("length_penalty", "only allowed when use_beam_search is true")
        if not self.stream:
            return self
        if self.best_of is not None and self.best_of != self.num_choices:
            raise at("best_of", f"must be n ({self.num_choices}) when stream is true; given: {self.best_of}")
        if self.use_beam_search:
            raise at("use_beam_search", "not possible when stream is true: the texts are known only at the end")
        if self.prompt_logprobs is not None:
            raise at("prompt_logprobs", "not available when stream is true")
        return self
