"""/v1/batches: requests and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field
from triptych_common.batch.lines import URLS

from triptych_gateway.wire.schema import ExpiresAfter, Metadata, Schema, optional, refuse

#: The time in which a batch is answered, in seconds, by its name.
WINDOWS = {"24h": 86400}


def _served(value: Any) -> Any:
    if isinstance(value, str) and value not in URLS:
        raise refuse(f"{value[:100]!r} is not served in batches; send one of {', '.join(URLS)}", "unsupported")
    return value


_Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]


class BatchRequest(Schema):
    """A file of requests, to be answered as far as others leave time."""

    input_file_id: Annotated[str, Field(max_length=64, description="A file with the purpose batch.")]
    endpoint: Annotated[
        _Endpoint,
        BeforeValidator(_served, json_schema_input_type=_Endpoint),
        Field(description="The url of all lines."),
    ]
    completion_window: Annotated[Literal["24h"], Field(description="What is not answered then has the error batch_expired.")]
    metadata: Metadata | None = optional("Labels that are kept with the batch.")
    output_expires_after: ExpiresAfter | None = optional("Default: 30 days.")


class BatchError(BaseModel):
    """Why a batch has failed."""

    code: str
    message: str
    param: str | None
    line: Annotated[int | None, Field(description="Number of the line in the input, from 1 on.")]


class BatchErrors(BaseModel):
    """All reasons."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchCounts(BaseModel):
    """Numbers of requests."""

    total: int = 0
    completed: int = 0
    failed: Annotated[int, Field(description="Answered with an error, or, at the end, not at all.")] = 0


class CachedTokens(BaseModel):
    """Tokens of the input, by kind."""

    cached_tokens: int


class ReasoningTokens(BaseModel):
    """Tokens of the output, by kind."""

    reasoning_tokens: int


class BatchUsage(BaseModel):
    """Tokens of all answers."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(BaseModel):
    """A batch."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: Annotated[str | None, Field(description="The model of all lines; null if they name several.")] = None
    errors: BatchErrors | None = None
    input_file_id: str
    completion_window: str
    status: Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
    output_file_id: Annotated[str | None, Field(description="The answers with a status below 400.")] = None
    error_file_id: Annotated[str | None, Field(description="The other answers, and what was not answered.")] = None
    created_at: int
    in_progress_at: int | None = None
    expires_at: int
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: BatchCounts = BatchCounts()
    usage: Annotated[BatchUsage | None, Field(description="Present when the batch has ended.")] = None
    metadata: dict[str, str] | None = None


class BatchList(BaseModel):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
