"""What a call of either client sends beside its request, and what its errors become."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from triptych.client.channels import MAX_MESSAGE_BYTES
from triptych.errors import InvalidRequestError, RequestAbortedError, TriptychError
from triptych.requests.options import CallOptions
from triptych.status import received_error
from triptych.v1 import generation_pb2

#: Trailing metadata with reports on media.
MEDIA_KEY = "triptych-media-bin"


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its deadline, its metadata, and who wants to hear of the server's."""

    request_id: str
    timeout_s: float | None
    metadata: tuple[tuple[str, str | bytes], ...]
    on_trailers: Callable[[Sequence[tuple[str, str | bytes]]], object] | None

    def answered(self, trailers: Any) -> None:
        """Hand on the trailing metadata."""
        if self.on_trailers is not None:
            self.on_trailers([(key, value) for key, value in trailers or ()])

    def check_stream(self) -> None:
        """Refuse what streams do not do."""
        if self.on_trailers is not None:
            raise TypeError("on_trailers is for calls that answer once; a stream has trailing_media()")

    def error(self, error: grpc.RpcError) -> TriptychError:
        """The error that a caller gets."""
        return received_error(error, self.request_id)

    def aborted(self) -> RequestAbortedError:
        """The error of a call that ended because its client was closed."""
        error = RequestAbortedError("the client was closed before the call had ended")
        error.request_id = self.request_id
        return error


@dataclass(frozen=True, slots=True)
class CallDefaults:
    """What a client's calls share.

    Args:
        api_key: sent as `authorization: Bearer ...`; None: no key.
        timeout_s: deadline of calls that have none of their own; None: no deadline.
    """

    api_key: str | None
    timeout_s: float | None

    def take(self, options: CallOptions) -> Call:
        """Take the options of the call itself out of `options`."""
        request_id = options.pop("request_id", None) or uuid.uuid4().hex
        timeout_s = options.pop("timeout_s", None)
        if timeout_s is None:
            timeout_s = self.timeout_s
        metadata: list[tuple[str, str | bytes]] = [("x-request-id", request_id)]
        if self.api_key is not None:
            metadata.append(("authorization", f"Bearer {self.api_key}"))
        metadata += (options.pop("metadata", None) or {}).items()
        timeout_s = None if timeout_s == math.inf else timeout_s
        return Call(request_id, timeout_s, tuple(metadata), options.pop("on_trailers", None))


def check_open(is_closed: bool) -> None:
    """Refuse calls of a client that was closed. The two kinds of channels would each raise an error of their own."""
    if is_closed:
        raise RuntimeError("this client is closed")


def check_size(request: Message) -> None:
    """Refuse a request that gRPC would not send. Its own error would be that of a server with a full queue."""
    if (size := request.ByteSize()) > MAX_MESSAGE_BYTES:
        message = f"the request has {size} bytes, more than {MAX_MESSAGE_BYTES}; send large media with UploadMedia"
        raise InvalidRequestError(message, limit=MAX_MESSAGE_BYTES, value=size)


def media_reports(metadata: object) -> list[generation_pb2.MediaReport]:
    """The reports in a call's trailing metadata."""
    entries = metadata or ()
    return [generation_pb2.MediaReport.FromString(value) for key, value in entries if key == MEDIA_KEY]  # type: ignore[attr-defined]
