"""Errors as OpenAI's clients expect them: a status and `{"error": {"message", "type", "param", "code"}}`.

A router may give its routes another body (`AccessRouter(error_body=...)`), as Anthropic's clients need it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope
from triptych.errors import (
    ContextLengthError,
    DeadlineExceededError,
    DuplicateRequestError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    PermissionDeniedError,
    QueueFullError,
    RequestAbortedError,
    ServiceUnavailableError,
    TriptychError,
    UnauthenticatedError,
    UnimplementedError,
)
from triptych_common.cluster.router import RETRYABLE

from triptych_gateway.connections.http_protocol import TOO_LARGE_CODE
from triptych_gateway.not_served import explanation
from triptych_gateway.record import RequestRecord
from triptych_gateway.tracing import note_error
from triptych_gateway.wire.schema import ErrorResponse
from triptych_gateway.wire.validation import describe

log = logging.getLogger(__name__)
#: nginx's status for "client closed request". The client has disconnected and does not see it, unless another party aborted the
#: request.
CLIENT_CLOSED_REQUEST = 499
#: Retry-After in seconds, for a refusal that names no delay.
DEFAULT_RETRY_AFTER_S = 1.0


class NotFoundError(TriptychError):
    """What the client named is not there, or it is not the client's."""

    reason = "NOT_FOUND"


class PreviousResponseNotFoundError(NotFoundError):
    """The response that a request continues is not there."""

    reason = "PREVIOUS_RESPONSE_NOT_FOUND"


class ShareExceededError(QueueFullError):
    """The caller's tenant holds its share of something finite, or nothing of it is left.

    Args:
        resource: what the metrics call it.
    """

    def __init__(self, resource: str, message: str, *, limit: object, value: object, retry_after_s: float) -> None:
        super().__init__(message, limit=limit, value=value, retry_after_s=retry_after_s)
        self.resource = resource


class ClientDisconnectedError(Exception):
    """The client went away before its answer was complete."""


class AccessDeniedError(HTTPException):
    """Refused because of the caller's API key, or for want of one.

    It is an HTTPException, because FastAPI hides every other error that is raised while a body is read.

    Args:
        reason: what the metrics and the audit log say.
        code: OpenAI's code.
        kind: OpenAI's type.
        retry_after_s: when the request is worth another try.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: str,
        *,
        code: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        if retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
        super().__init__(status, message, headers)
        self.reason = reason
        self.error = ApiError(status, message, kind, param, code, headers)


class InvalidBodyError(HTTPException):
    """A body that does not fit the schema of its route.

    It is an HTTPException for the same reason.

    Args:
        body: the value that was validated.
    """

    def __init__(self, error: ValidationError, body: Any) -> None:
        super().__init__(400)
        self.errors, self.body = [{**one, "loc": ("body", *one["loc"])} for one in error.errors()], body


@dataclass(frozen=True)
class ApiError:
    """An error as the client gets it."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The name of the model that is unknown.
    model: str = ""

    @property
    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})


#: Writes the JSON body of an error as an API has it. Its arguments: the error, the id of the request.
ErrorBody = Callable[[ApiError, str], bytes]


def error_response(error: Exception, scope: Scope) -> Response:
    """The HTTP response for any error of a request, with the body that its route's API has. By default the body is OpenAI's."""
    record = scope["state"]["record"]
    api_error = note_failure(record, error)
    write: ErrorBody | None = scope["app"].state.error_bodies.of(scope["path"])
    body = api_error.body if write is None else write(api_error, record.request_id)
    return Response(body, api_error.status, dict(api_error.headers), media_type="application/json")


def note_failure(record: RequestRecord, error: Exception) -> ApiError:
    """Note the error that a request ended with in its record and its span. Returns the client's view of it."""
    api_error = to_api_error(error)
    record.error = api_error.code or api_error.type
    if isinstance(error, AccessDeniedError):
        record.refusal = error.reason
    record.refused_resource = refused_resource(error)
    note_error(record.error, api_error.status)
    return api_error


#: HTTP status -> what a gRPC client gets.
_CALL_ERRORS: dict[int, type[TriptychError]] = {
    400: InvalidRequestError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    429: QueueFullError,
    503: ServiceUnavailableError,
}


def to_call_error(error: Exception) -> TriptychError:
    """Any error as the gRPC port tells it, after `note_failure`: with an unexpected one's text only in the log."""
    if isinstance(error, TriptychError):
        return error
    if not isinstance(error, HTTPException):
        return InternalError(f"internal error ({type(error).__name__}); the gateway's log has the details")
    api_error = to_api_error(error)
    retry_after = api_error.headers.get("retry-after")
    retry_after_s = float(retry_after) if retry_after else None
    cls = _CALL_ERRORS.get(api_error.status, InternalError)
    field = "authorization" if api_error.status == 401 else api_error.param or ""
    return cls(api_error.message, field=field, retry_after_s=retry_after_s)


# class -> (status, type, code). The first matching class applies. A code of None means the error's own reason in lower case.
_STATUSES: list[tuple[type[TriptychError], int, str, str | None]] = [
    (ContextLengthError, 400, "invalid_request_error", "context_length_exceeded"),
    (InvalidRequestError, 400, "invalid_request_error", None),
    (UnimplementedError, 400, "invalid_request_error", "unsupported"),
    (UnauthenticatedError, 401, "invalid_request_error", "invalid_api_key"),
    (PermissionDeniedError, 403, "invalid_request_error", None),
    (ModelNotFoundError, 404, "invalid_request_error", "model_not_found"),
    (NotFoundError, 404, "invalid_request_error", None),
    (DuplicateRequestError, 409, "invalid_request_error", None),
    (QueueFullError, 429, "rate_limit_error", None),
    (RequestAbortedError, CLIENT_CLOSED_REQUEST, "aborted", "aborted"),
    (DeadlineExceededError, 504, "server_error", None),
    (ServiceUnavailableError, 503, "service_unavailable_error", None),
    (TriptychError, 500, "server_error", "internal_error"),
]


def to_api_error(error: Exception) -> ApiError:
    """The client's view of any error. An unexpected exception is logged, and the client does not see its text."""
    if isinstance(error, TriptychError):
        return _of_triptych(error)
    if isinstance(error, RequestValidationError | InvalidBodyError):
        problem = describe(error.errors() if isinstance(error, RequestValidationError) else error.errors, error.body)
        return ApiError(400, problem.message, "invalid_request_error", problem.param, problem.code)
    if isinstance(error, AccessDeniedError):
        return error.error
    if isinstance(error, HTTPException):
        return _of_http(error)
    log.error("unexpected error", exc_info=error)
    return ApiError(500, "internal error; the gateway's log has the details", "server_error", code="internal_error")


def refused_resource(error: Exception) -> str:
    """What there was too little of for a request that was refused with 429; empty for all other errors. Logs nothing."""
    if status_of(error) != 429:
        return ""
    if isinstance(error, ShareExceededError):
        return error.resource
    return error.reason if isinstance(error, AccessDeniedError) else "queue_full"


def status_of(error: BaseException) -> int:
    """The HTTP status of an error. Logs nothing."""
    if isinstance(error, TriptychError | RequestValidationError | HTTPException):
        return to_api_error(error).status
    return 500


def _of_triptych(error: TriptychError) -> ApiError:
    status, kind, code = next((row[1], row[2], row[3]) for row in _STATUSES if isinstance(error, row[0]))
    headers = {}
    if isinstance(error, RETRYABLE):
        delay_s = DEFAULT_RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
        headers["retry-after"] = str(max(1, math.ceil(delay_s)))
    param = "model" if isinstance(error, ModelNotFoundError) else error.field or None
    model = error.value if isinstance(error, ModelNotFoundError) and error.field == "model" else ""
    return ApiError(status, error.message, kind, param, code or error.reason.lower(), headers, model)


def _of_http(error: HTTPException) -> ApiError:
    codes = {
        400: "invalid_request",
        404: "not_found",
        405: "method_not_allowed",
        408: "request_timeout",
        413: "request_too_large",
        429: "queue_full",
        431: TOO_LARGE_CODE,
    }
    message = str(error.detail)
    if message == HTTPStatus(error.status_code).phrase:
        message = {405: "this path does not take that method"}.get(error.status_code, message)
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    kind = "rate_limit_error" if error.status_code == 429 else kind
    return ApiError(error.status_code, message, kind, code=codes.get(error.status_code), headers=error.headers or {})


async def handle_error(request: Request, error: Exception) -> Response:
    """FastAPI's exception handler for exceptions of routes."""
    if isinstance(error, HTTPException) and error.status_code == 404 and error.detail == HTTPStatus.NOT_FOUND.phrase:
        error = HTTPException(404, explanation(request.url.path))
    return error_response(error, request.scope)


def openapi_responses(model: type = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route, for the OpenAPI document.

    Args:
        model: the schema of their body.
    """
    return {
        "4XX": {"model": model, "description": "The request is at fault, or (429) the queue is full: see Retry-After."},
        "5XX": {"model": model, "description": "The server is at fault, or (503) not ready: see Retry-After."},
    }
