"""What the schemas of requests are made of: strict objects, marks for fields that are not supported, shared field types, errors."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar, cast

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError, core_schema
from triptych_common.limits import MAX_STOP_STRINGS

T = TypeVar("T")
Texts = TypeVar("Texts")
TokenIdLists = TypeVar("TokenIdLists")
UINT32_MAX = 2**32 - 1
#: Token ids in one list, except in prompts.
MAX_TOKEN_IDS = 65_536
MAX_LOGIT_BIASES = 4096
#: Nesting depth of objects and arrays. Each level takes up to three levels of protobuf messages, and protobuf parses at most 100. A
#: deeper message would fail the session with the frontend, and with it all calls.
MAX_JSON_DEPTH = 20
#: The same for JSON Schemas. They travel as text, whose writer takes at most 254 levels.
MAX_SCHEMA_DEPTH = 200
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
        fields = _names_of(cls)
        if not isinstance(value, dict) or len(value) <= len(fields) + _MAX_UNKNOWN_FIELDS:
            return value
        unknown = islice((name for name in value if name not in fields), _MAX_UNKNOWN_FIELDS)
        return {name: value[name] for name in fields if name in value} | {name: value[name] for name in unknown}


def optional(description: str, **limits: Any) -> Any:
    """A field of a model that may be left out or null, both of which mean "not given"; with pydantic's limits on its value."""
    return Field(default=None, description=description, **limits)


@cache
def _names_of(schema: type[Schema]) -> dict[str, None]:
    """The names of its fields, in order."""
    return dict.fromkeys(info.alias or name for name, info in schema.model_fields.items())


class HistorySchema(Schema):
    """A part of a conversation's history. Another provider's server may have written it, so unknown fields are left out.

    They are counted (`ignored_fields`). A field that is known and not supported is still refused where it has a meaning.
    """

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _count_unknown_fields(cls, value: Any) -> Any:
        if isinstance(value, dict):
            ignored_fields["total"] += len(value.keys() - _names_of(cls).keys())
        return value


#: Fields of histories that were left out, since the process started. The gateway's metrics report the total.
ignored_fields = Counter[str]()


def refuse(message: str, kind: Literal["request", "unsupported"] = "request") -> PydanticCustomError:
    """A validation error with the given message, which may contain braces."""
    return PydanticCustomError(kind, "{message}", {"message": message})


def at(field: str, message: str) -> PydanticCustomError:
    """An error about one field, from a validator that sees the whole object."""
    return PydanticCustomError("request", "{message}", {"message": message, "field": field})


class NoOp:
    """Marks a field that is not supported. null and the values that have no effect are accepted; others are refused.

    Args:
        allowed: values that have no effect.
        because: what the client can do instead, or why there is nothing to support.
    """

    def __init__(self, *allowed: object, because: str = "") -> None:
        self.allowed = allowed
        self.because = because

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # docs/openai.md is made from this.
        said = "Not supported: takes only values that ask for nothing."
        return {"enum": [None, *self.allowed], "description": said, "x-unsupported": self.because}

    def _check(self, value: Any) -> Any:
        if value is None or any(type(value) is type(option) and value == option for option in self.allowed):
            return value
        values = " or ".join(orjson.dumps(option).decode() for option in (None, *self.allowed))
        why = f" ({self.because})" if self.because else ""
        raise refuse(f"not supported{why}; leave it out or send {values}", "unsupported")


def _text_kind(value: Any) -> str:
    return "list" if isinstance(value, list) else "text"


#: A string, or a list of something. Errors are those of the form that was sent.
TextOr = Annotated[Annotated[str, Tag("text")] | Annotated[T, Tag("list")], Discriminator(_text_kind)]
TokenId = Annotated[int, Field(ge=0, le=UINT32_MAX)]
PromptTokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def _prompt_kind(value: Any) -> str:
    """Which of the four forms of a prompt this is, by its first element."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    return "token_ids" if isinstance(first, (int, float)) else "token_id_lists" if isinstance(first, list) else "texts"


#: A text, a list of texts, token ids, or a list of lists of token ids.
Prompts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[PromptTokenIds, Tag("token_ids")]
    | Annotated[TokenIdLists, Tag("token_id_lists")],
    Discriminator(_prompt_kind),
]


def prompt_list(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The single prompts."""
    many = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return cast("list[str | list[int]]", many)


TokenIdList = Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


def _stop_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
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
    Field(max_length=MAX_LOGIT_BIASES, fail_fast=True),
    BeforeValidator(_token_id_keys, json_schema_input_type=dict[str, float]),
]


class Shallow:
    """Limits the nesting of a JSON value."""

    def __init__(self, levels: int) -> None:
        self._levels = levels

    def __call__(self, value: Any) -> Any:
        self._check(value, self._levels)
        return value

    def _check(self, value: Any, levels: int) -> None:
        if not isinstance(value, dict | list):
            return
        if not levels:
            raise refuse(f"nested too deeply; at most {self._levels} levels are allowed")
        for item in value.values() if isinstance(value, dict) else value:
            self._check(item, levels - 1)


JsonObject = Annotated[dict[str, Any], AfterValidator(Shallow(MAX_JSON_DEPTH))]
#: Travels as JSON text, because a Struct would lose the order of its properties.
JsonSchema = Annotated[dict[str, Any], AfterValidator(Shallow(MAX_SCHEMA_DEPTH))]


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16, fail_fast=True)
]


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 12 else value


class ExpiresAfter(Schema):
    """When a file is deleted. A form has two fields: `expires_after[anchor]` and `expires_after[seconds]`."""

    anchor: Annotated[Literal["created_at"], Field(description="The time at which the file was made.")]
    seconds: Annotated[int, BeforeValidator(_whole_number), Field(ge=3600, le=30 * 86400, description="An hour to 30 days.")]


class ErrorDetail(BaseModel):
    """The error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error."""

    error: ErrorDetail
