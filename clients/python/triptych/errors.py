"""The error tree of all services and clients.

    TriptychError
    ├── InvalidRequestError            the request is at fault                    INVALID_ARGUMENT
    │   ├── ContextLengthError         longer than the model's context
    │   └── NeverFitsError             larger than the whole KV cache
    ├── ModelNotFoundError             no such model here                         NOT_FOUND
    ├── MediaNotFoundError             the encoder needs the bytes of the item    NOT_FOUND
    ├── DuplicateRequestError          the request id is in use                   ALREADY_EXISTS
    ├── QueueFullError                 try again later                            RESOURCE_EXHAUSTED
    ├── ServiceUnavailableError        a required service is unavailable          UNAVAILABLE
    ├── EmbeddingUnavailableError      the encoder no longer holds it; encode again  FAILED_PRECONDITION
    ├── RequestAbortedError            aborted on request                         ABORTED
    ├── DeadlineExceededError          the call's deadline passed                 DEADLINE_EXCEEDED
    ├── UnauthenticatedError           no valid key                               UNAUTHENTICATED
    ├── PermissionDeniedError          the caller may not do this                 PERMISSION_DENIED
    ├── UnimplementedError             valid, but not supported here              UNIMPLEMENTED
    ├── InternalError                  a fault of the service                     INTERNAL
    └── StartupError                   this service cannot start                  (no request to answer)
        └── UnsupportedModelError      the model cannot run correctly

Services raise these errors. An interceptor turns them into gRPC statuses (`triptych_common.rpc.status`), and the gateway turns them
into OpenAI error bodies. This module depends on neither gRPC nor HTTP.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """gRPC status codes by number, for modules that must not import grpc."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class TriptychError(Exception):
    """An error that may be shown to the caller.

    Args:
        message: one sentence for people that names the field, the limit and the value.
        field: path of the offending field, e.g. `messages[0].role`; empty when none is at fault.
        limit: the limit that was exceeded; empty when there is none.
        value: what was given instead.
        retry_after_s: when to try again, in seconds; None when a retry will not help.

    Attributes:
        code: gRPC status code.
        reason: constant for programs. Empty on an error that a client received without details.
        request_id: of the client's call, as the service's logs have it; empty in services.
        has_details: False on an error of a client that came from the transport, not from a service.
    """

    code: Code = Code.INTERNAL
    reason: str = "INTERNAL"
    request_id: str = ""
    has_details: bool = True

    def __init__(
        self, message: str, *, field: str = "", limit: object = "", value: object = "", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.limit = str(limit)
        self.value = str(value)
        self.retry_after_s = retry_after_s


class InvalidRequestError(TriptychError):
    """The request is at fault. A retry will not help."""

    code = Code.INVALID_ARGUMENT
    reason = "INVALID_REQUEST"


class ContextLengthError(InvalidRequestError):
    """The prompt, or prompt and output together, are longer than the model's context."""

    reason = "CONTEXT_LENGTH_EXCEEDED"


class NeverFitsError(InvalidRequestError):
    """The request needs more KV cache than the engine has in total."""

    reason = "KV_CACHE_CAPACITY_EXCEEDED"


class ModelNotFoundError(TriptychError):
    """No model of that name is served here."""

    code = Code.NOT_FOUND
    reason = "MODEL_NOT_FOUND"


class MediaNotFoundError(TriptychError):
    """The cache has no embedding for this key, and the request came without the file: send the file."""

    code = Code.NOT_FOUND
    reason = "MEDIA_NOT_FOUND"


class DuplicateRequestError(TriptychError):
    """A live request already has this id."""

    code = Code.ALREADY_EXISTS
    reason = "DUPLICATE_REQUEST"


class QueueFullError(TriptychError):
    """The queue is at its limit."""

    code = Code.RESOURCE_EXHAUSTED
    reason = "QUEUE_FULL"


class ServiceUnavailableError(TriptychError):
    """A service that the request needs is unavailable, draining or asleep."""

    code = Code.UNAVAILABLE
    reason = "SERVICE_UNAVAILABLE"


class EmbeddingUnavailableError(TriptychError):
    """A required embedding is no longer held, or its encoder is unavailable: encode it again, with the same or another encoder."""

    code = Code.FAILED_PRECONDITION
    reason = "EMBEDDING_UNAVAILABLE"


class RequestAbortedError(TriptychError):
    """The request was ended by an abort."""

    code = Code.ABORTED
    reason = "ABORTED"


class DeadlineExceededError(TriptychError):
    """The call took longer than its deadline. The work was aborted."""

    code = Code.DEADLINE_EXCEEDED
    reason = "DEADLINE_EXCEEDED"


class UnauthenticatedError(TriptychError):
    """The call has no key, or one that is not valid."""

    code = Code.UNAUTHENTICATED
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(TriptychError):
    """The caller is known, and may not do this."""

    code = Code.PERMISSION_DENIED
    reason = "PERMISSION_DENIED"


class UnimplementedError(TriptychError):
    """The request is valid, but this service or model does not support it."""

    code = Code.UNIMPLEMENTED
    reason = "UNIMPLEMENTED"


class InternalError(TriptychError):
    """An unexpected error. The service's log has the traceback."""


class StartupError(TriptychError):
    """This service cannot start. The message says what to change."""

    code = Code.FAILED_PRECONDITION
    reason = "STARTUP"


class UnsupportedModelError(StartupError):
    """The model cannot run correctly here."""

    reason = "UNSUPPORTED_MODEL"


def _subclasses(cls: type[TriptychError]) -> list[type[TriptychError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _subclasses(sub))]


#: All but the base class. The first of several classes that share a reason or a code stands for it.
_CLASSES = _subclasses(TriptychError)[1:]
_BY_REASON = {cls.reason: cls for cls in reversed(_CLASSES)}
_BY_CODE: dict[int, type[TriptychError]] = {
    **{cls.code: cls for cls in reversed(_CLASSES)},
    Code.CANCELLED: RequestAbortedError,
    Code.FAILED_PRECONDITION: ServiceUnavailableError,
}


def error_class(reason: str, code: int) -> type[TriptychError]:
    """The class of an error that was received over the wire: by its reason, or else by its code."""
    return _BY_REASON.get(reason) or _BY_CODE.get(code, InternalError)
