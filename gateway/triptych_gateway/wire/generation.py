"""The fields that /v1/chat/completions and /v1/completions share.

Every field of OpenAI's and vLLM's requests is declared. A field is either honoured, or accepted only with a value that has no
effect (`NoOp`). Undeclared fields are refused. null always means "not given".
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from triptych_common.limits import MAX_AFFINITY_KEY_CHARS, MAX_BAD_WORDS, MAX_CHOICES, MAX_LOGPROBS

from triptych_gateway.wire.schema import (
    UINT32_MAX,
    JsonSchema,
    LogitBias,
    NoOp,
    Schema,
    StopStrings,
    TokenIdList,
    at,
    optional,
    refuse,
)

#: Texts of structured_outputs.choice.
MAX_TEXTS = 4096
#: Fields of StructuredOutputs of which one is given, as clients name them.
KINDS = ("json", "regex", "choice", "grammar", "json_object")

_SPACES = "JSON always has at most one space between its tokens"


class JsonSchemaFormat(Schema):
    """A JSON Schema, and labels for it."""

    name: str | None = optional("A label; the model does not see it.", max_length=256)
    description: str | None = optional("A label; the model does not see it.")
    json_schema: Annotated[JsonSchema, Field(alias="schema", description="The schema that the output follows.")]
    strict: bool | None = optional("The output follows the schema in any case, also with false.")


class ResponseFormat(Schema):
    """The format of the answer."""

    type: Annotated[Literal["text", "json_object", "json_schema"], Field(description="structural_tag is refused.")]
    json_schema: JsonSchemaFormat | None = optional("Required with the type json_schema, and only with it.")

    @model_validator(mode="before")
    @classmethod
    def _no_structural_tag(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") == "structural_tag":
            raise refuse("structural tags are not supported; send json_schema, or structured_outputs.grammar", "unsupported")
        return value

    @model_validator(mode="after")
    def _schema_if_it_is_one(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            needs = "is required" if self.json_schema is None else "is not allowed"
            raise at("response_format.json_schema", f"{needs} with the type {self.type}")
        return self


class StructuredOutputs(Schema):
    """One constraint on the output. The tokens that would break it are never generated."""

    json_: JsonSchema | str | None = optional(
        "A JSON Schema, as an object or as JSON text.", alias="json", union_mode="left_to_right"
    )
    regex: str | None = optional("A regular expression that the whole output matches.", min_length=1)
    choice: (
        Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)] | None
    ) = optional("The output is one of these strings.")
    grammar: str | None = optional("A context-free grammar in Lark's notation.", min_length=1)
    json_object: bool | None = optional("true: any JSON object.")
    disable_any_whitespace: Annotated[Any, NoOp(True, because=_SPACES)] = None
    disable_fallback: Annotated[Any, NoOp(True, False, because="there is one backend")] = None
    disable_additional_properties: Annotated[Any, NoOp(False, because="write additionalProperties into the schema")] = None
    whitespace_pattern: Annotated[Any, NoOp(because=_SPACES)] = None
    structural_tag: Annotated[Any, NoOp(because="send a grammar")] = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if len(self.given) != 1:
            raise refuse(f"send exactly one of {', '.join(KINDS)}; given: {', '.join(self.given) or 'none'}")
        return self

    @property
    def given(self) -> list[str]:
        """The kinds that are given. json_object: false asks for nothing."""
        values = (self.json_, self.regex, self.choice, self.grammar, self.json_object or None)
        return [name for name, value in zip(KINDS, values, strict=True) if value is not None]


_GUIDED = "vLLM removed it; send structured_outputs"


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: bool | None = optional("End with a chunk that has no choices but the usage.")
    continuous_usage_stats: bool | None = optional("With include_usage: every chunk has the usage so far.")
    include_obfuscation: Annotated[Any, NoOp(False)] = None


class GenerationRequest(Schema):
    """The fields that /v1/chat/completions and /v1/completions share."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    stream: bool | None = optional("Send server-sent events as text appears.")
    stream_options: StreamOptions | None = optional("Only with stream.")
    n: int | None = optional("Choices to send. Default 1.", ge=1, le=MAX_CHOICES)
    best_of: int | None = optional(
        "Choices to generate, of which the n likeliest are sent. With use_beam_search: beams. Default n. "
        "More than n only without stream.",
        ge=1,
        le=MAX_CHOICES,
    )
    temperature: float | None = optional("Divides the logits; 0 is greedy. Default 1.", ge=0, le=2)
    top_p: float | None = optional("Smallest set of tokens with this probability. Default 1.", gt=0, le=1)
    presence_penalty: float | None = optional("Subtracted once from the logit of each generated token. Default 0.", ge=-2, le=2)
    frequency_penalty: float | None = optional(
        "Subtracted from a token's logit for each time it was generated. Default 0.", ge=-2, le=2
    )
    logit_bias: LogitBias | None = optional("Token id -> bias in [-100, 100] that is added to its logit. At most 4,096 tokens.")
    seed: int | None = optional("Same seed, same random numbers; choice i uses seed + i.", ge=-(2**63), le=2**63 - 1)
    stop: StopStrings | None = optional("Up to 16 strings of up to 1,024 characters that end a choice; they are not sent.")
    user: str | None = optional("The client's own label of its end user; it changes nothing here.")

    # Extensions of OpenAI's API, with vLLM's names.
    top_k: int | None = optional("Keep the k likeliest tokens; 0 and -1 keep all.", ge=-1, le=UINT32_MAX)
    min_p: float | None = optional("Drop tokens less likely than this share of the likeliest.", ge=0, le=1)
    repetition_penalty: float | None = optional(
        "Divides positive and multiplies negative logits of prompt and output tokens. Default 1.", ge=0.01, le=10
    )
    min_tokens: int | None = optional("Tokens before a stop token may end a choice.", ge=0, le=UINT32_MAX)
    ignore_eos: bool | None = optional("Go on past the model's own end-of-sequence tokens.")
    stop_token_ids: TokenIdList | None = optional("Tokens that end a choice.")
    allowed_token_ids: Annotated[TokenIdList, Field(min_length=1)] | None = optional("Only these tokens can be generated.")
    skip_special_tokens: bool | None = optional("Leave special tokens out of the text. Default true.")
    include_stop_str_in_output: bool | None = optional("Send the stop string too.")
    priority: int | None = optional("Lower runs first. Default 0.", ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = optional("Prefix-cache blocks are shared only between requests of the same salt.", min_length=1)
    prompt_cache_key: str | None = optional(
        "Requests with the same key go to the same engine where several cost about the same, unless they have media. The prefix "
        "cache finds equal prompts without it; cache_salt keeps them apart.",
        max_length=MAX_AFFINITY_KEY_CHARS,
    )
    return_token_ids: bool | None = optional("Send the ids of the output tokens as `token_ids` of each choice.")

    response_format: ResponseFormat | None = optional("The format of the output. Default: text.")
    structured_outputs: StructuredOutputs | None = optional("A constraint on the output.")
    prompt_logprobs: int | None = optional(
        "Log probabilities of prompt tokens and of so many alternatives. Not with stream.", ge=0, le=MAX_LOGPROBS
    )
    bad_words: Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MAX_BAD_WORDS, fail_fast=True)] | None = (
        optional("Words that are never generated, also with a space before them.")
    )
    truncate_prompt_tokens: int | None = optional(
        "Keep only this many last tokens of the prompt; -1: as many as fit. By default a longer prompt is refused. Not with media.",
        ge=-1,
        le=2**31 - 1,
    )
    use_beam_search: bool | None = optional("Find the n likeliest texts. Not with stream.")
    length_penalty: float | None = optional(
        "With use_beam_search: a text's score is divided by its length to this power. Default 1.", ge=-10, le=10
    )

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
    @abstractmethod
    def token_limit(self) -> int | None:
        """The client's limit on output tokens per choice."""

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Alternatives to report per token; None reports nothing."""

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
