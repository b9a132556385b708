"""What a call of either client sends beside its request, and what its errors become."""

from __future__ import annotations

import math
import re
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import grpc
from google.protobuf.message import Message

from triptych.client.channels import MAX_MESSAGE_BYTES
from triptych.errors import InvalidRequestError, RequestAbortedError, TriptychError
from triptych.requests.options import CallOptions
from triptych.status import received_error

#: Most bytes of a call's metadata; servers refuse more.
_MAX_METADATA_BYTES = 8192
#: A deadline beyond this, in seconds, is none: gRPC would take it for one that has passed.
_LONGEST_TIMEOUT_S = 1e9
_METADATA_KEY = re.compile(r"(?!grpc-)[0-9a-z_.-]+")
_METADATA_TEXT = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its deadline, its metadata, and who wants to hear of the server's."""

    request_id: str
    timeout_s: float | None
    metadata: tuple[tuple[str, str | bytes], ...] = field(repr=False)  # it has the key
    on_trailers: Callable[[Sequence[tuple[str, str | bytes]]], object] | None

    def start(self, method: Callable[..., Any], request: Message) -> Any:
        """What a method of a stub returns for this call.

        Raises:
            InvalidRequestError: gRPC would not send the request. Its own error would be that of a server with a full queue.
        """
        if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
            message = f"the request has {size} bytes, more than {MAX_MESSAGE_BYTES}; send large media with UploadMedia"
            raise InvalidRequestError(message, limit=MAX_MESSAGE_BYTES, value=size)
        return method(request, timeout=self.timeout_s, metadata=self.metadata)

    def start_stream(self, method: Callable[..., Any], request: Message) -> Any:
        """The same for a call that streams. Raises TypeError for what streams do not do."""
        if self.on_trailers is not None:
            raise TypeError("on_trailers is for calls that answer once; a stream has trailing_media()")
        return self.start(method, request)

    def answered(self, trailers: Any) -> None:
        """Hand on the trailing metadata."""
        if self.on_trailers is not None:
            self.on_trailers([(key, value) for key, value in trailers or ()])

    def error(self, error: grpc.RpcError) -> TriptychError:
        """The error that a caller gets."""
        return received_error(error, self.request_id)

    def aborted(self, message: str = "the client was closed before the call had ended") -> RequestAbortedError:
        """The error of a call that was ended on this side."""
        error = RequestAbortedError(message)
        error.request_id = self.request_id
        return error


@dataclass(frozen=True, slots=True)
class CallDefaults:
    """What a client's calls share.

    Args:
        api_key: sent as `authorization: Bearer ...`; None: no key.
        timeout_s: deadline of calls that have none of their own; None: no deadline.
    """

    api_key: str | None = field(repr=False)
    timeout_s: float | None

    def take(self, options: CallOptions) -> Call:
        """Take the options of the call itself out of `options`.

        Raises:
            InvalidRequestError: gRPC cannot send a value. Values of metadata and the key are not in the message.
        """
        request_id = options.pop("request_id", None) or uuid.uuid4().hex
        _check_metadata("request_id", "x-request-id", request_id)
        timeout_s = options.pop("timeout_s", None)
        timeout_s = _checked_timeout(self.timeout_s if timeout_s is None else timeout_s)
        metadata: list[tuple[str, str | bytes]] = [("x-request-id", request_id)]
        if self.api_key is not None:
            _check_metadata("api_key", "authorization", self.api_key)
            metadata.append(("authorization", f"Bearer {self.api_key}"))
        metadata += _trace()
        for key, value in (options.pop("metadata", None) or {}).items():
            _check_metadata(f"metadata[{key}]", key, value)
            metadata.append((key, value))
        size = sum(len(key) + len(value) for key, value in metadata)
        if size > _MAX_METADATA_BYTES:
            message = f"the metadata has {size} bytes, more than {_MAX_METADATA_BYTES}"
            raise InvalidRequestError(message, field="metadata", limit=_MAX_METADATA_BYTES, value=size)
        return Call(request_id, timeout_s, tuple(metadata), options.pop("on_trailers", None))


def _trace() -> list[tuple[str, str]]:
    """The caller's place in its trace, if the program uses OpenTelemetry. The client itself does not need the package."""
    if "opentelemetry.trace" not in sys.modules:
        return []
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return [(key.lower(), value) for key, value in carrier.items() if key.lower() in ("traceparent", "tracestate")]


def _check_metadata(name: str, key: object, value: object) -> None:
    """Refuse what gRPC would not send. Its own errors differ between the two clients, and name nothing."""
    if not isinstance(key, str) or not _METADATA_KEY.fullmatch(key):
        message = f"{name}: a key of metadata has digits, lower-case letters and any of _.- and does not start with grpc-"
        raise InvalidRequestError(message, field=name)
    if key.endswith("-bin"):
        if not isinstance(value, bytes):
            raise InvalidRequestError(f"{name} must be bytes, because the key {key} ends in -bin", field=name)
    elif not isinstance(value, str) or not _METADATA_TEXT.fullmatch(value):
        message = f"{name} must be a string of printable ASCII characters, without line breaks, to be sent as {key}"
        raise InvalidRequestError(message, field=name)


def _checked_timeout(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not isinstance(timeout_s, Real) or math.isnan(timeout_s):
        raise InvalidRequestError(f"timeout_s is {timeout_s!r}, not a number of seconds", field="timeout_s", value=timeout_s)
    if timeout_s <= 0:
        return -1.0  # with 0 the call may still be answered
    return None if timeout_s > _LONGEST_TIMEOUT_S else float(timeout_s)
