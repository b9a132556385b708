"""Field types and sampling options that several routes share.

Every field of OpenAI's requests is declared. A field is either honoured, or accepted only with a value that has no effect (`NoOp`).
Undeclared fields are refused. null always means "not given".
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema

UINT32_MAX = 2**32 - 1
MAX_STOP_STRINGS = 16
#: Token ids in one list, except in prompts.
MAX_TOKEN_IDS = 65_536
MAX_LOGIT_BIASES = 4096
#: Nesting depth of objects and arrays. Each level takes up to three levels of protobuf messages, and protobuf parses at most 100. A
#: deeper message would fail the session with the frontend, and with it all calls.
MAX_JSON_DEPTH = 20
#: Unknown fields of an object that are reported at most.
_MAX_UNKNOWN_FIELDS = 8


class Schema(BaseModel):
    """A JSON object from a client: strict types, no unknown fields.

    Validation runs on the event loop, and each error costs far more than the bytes that caused it. So the number of errors is
    bounded: lists and dicts of a schema are `fail_fast`, and only the first few unknown fields are reported.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _few_unknown_fields(cls, value: Any) -> Any:
        fields = cls.model_fields
        if not isinstance(value, dict) or len(value) <= len(fields) + _MAX_UNKNOWN_FIELDS:
            return value
        unknown = islice((name for name in value if name not in fields), _MAX_UNKNOWN_FIELDS)
        return {name: value[name] for name in fields if name in value} | {name: value[name] for name in unknown}


def refuse(message: str, kind: Literal["request", "unsupported"] = "request") -> PydanticCustomError:
    """A validation error with the given message, which may contain braces."""
    return PydanticCustomError(kind, "{message}", {"message": message})


def at(field: str, message: str) -> PydanticCustomError:
    """An error about one field, from a validator that sees the whole object."""
    return PydanticCustomError("request", "{message}", {"message": message, "field": field})


class NoOp:
    """Marks a field that is not supported yet. null and the values that have no effect are accepted; others are refused."""

    def __init__(self, *allowed: object) -> None:
        self._allowed = allowed

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": [None, *self._allowed], "description": "Not supported yet: only values that ask for nothing."}

    def _check(self, value: Any) -> Any:
        if value is None or any(type(value) is type(option) and value == option for option in self._allowed):
            return value
        values = " or ".join(orjson.dumps(option).decode() for option in (None, *self._allowed))
        raise refuse(f"not supported yet; leave it out or send {values}", "unsupported")


TokenId = Annotated[int, Field(ge=0, le=UINT32_MAX)]
PromptTokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
TokenIdList = Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOP_STRINGS, description="Strings that end a choice; they are not sent.", fail_fast=True),
    BeforeValidator(_stop_list, json_schema_input_type=str | list[str]),
]


def _token_id_keys(value: Any) -> Any:
    """Convert the string keys of JSON to integers."""
    if not isinstance(value, dict):
        return value
    biases: dict[int, Any] = {}
    for key, bias in value.items():
        if not (isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdecimal() and int(key) <= UINT32_MAX):
            raise refuse(f"each key must be a token id, an integer in [0, {UINT32_MAX}]; given: {str(key)[:40]!r}")
        biases[int(key)] = bias
    return biases


LogitBias = Annotated[
    dict[int, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_LOGIT_BIASES, description="Token id -> bias in [-100, 100] that is added to its logit.", fail_fast=True),
    BeforeValidator(_token_id_keys, json_schema_input_type=dict[str, float]),
]


def _shallow(value: Any) -> Any:
    _check_depth(value, MAX_JSON_DEPTH)
    return value


def _check_depth(value: Any, levels: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not levels:
        raise refuse(f"nested too deeply; at most {MAX_JSON_DEPTH} levels are allowed")
    for item in value.values() if isinstance(value, dict) else value:
        _check_depth(item, levels - 1)


JsonObject = Annotated[dict[str, Any], AfterValidator(_shallow)]


class StreamOptions(Schema):
    """Options of a streamed answer."""

    include_usage: Annotated[bool | None, Field(description="End with a chunk that has no choices but the usage.")] = None
    include_obfuscation: Annotated[Any, NoOp(False)] = None


class GenerationRequest(Schema):
    """The fields that /v1/chat/completions and /v1/completions share."""

    model: Annotated[str, Field(description="A name from /v1/models.")]
    stream: Annotated[bool | None, Field(description="Send server-sent events as text appears.")] = None
    stream_options: StreamOptions | None = None
    n: Annotated[int | None, Field(ge=1, le=128, description="Choices to generate.")] = None
    temperature: Annotated[float | None, Field(ge=0, le=2, description="Divides the logits; 0 is greedy. Default 1.")] = None
    top_p: Annotated[float | None, Field(gt=0, le=1, description="Smallest set of tokens with this probability. Default 1.")] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    logit_bias: LogitBias | None = None
    seed: Annotated[int | None, Field(ge=-(2**63), le=2**63 - 1, description="Same seed, same text.")] = None
    stop: StopStrings | None = None
    user: Annotated[str | None, Field(description="The client's own label of its end user; it changes nothing here.")] = None

    # Extensions of OpenAI's API, with vLLM's names.
    top_k: Annotated[int | None, Field(ge=-1, le=UINT32_MAX, description="Keep the k likeliest tokens; 0 and -1 keep all.")] = None
    min_p: Annotated[float | None, Field(ge=0, le=1, description="Drop tokens less likely than this share of the likeliest.")] = (
        None
    )
    repetition_penalty: Annotated[float | None, Field(ge=0.01, le=10)] = None
    min_tokens: Annotated[int | None, Field(ge=0, le=UINT32_MAX, description="Tokens before a stop token may end a choice.")] = None
    ignore_eos: Annotated[bool | None, Field(description="Go on past the model's own end-of-sequence tokens.")] = None
    stop_token_ids: TokenIdList | None = None
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

    @property
    def num_choices(self) -> int:
        """Choices per prompt."""
        return self.n or 1

    @property
    def include_usage(self) -> bool:
        """Whether a streamed answer ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

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
        return self


class ErrorDetail(BaseModel):
    """The error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error."""

    error: ErrorDetail
