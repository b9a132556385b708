"""One call at the gRPC port: what is known of it, what its key permits, and the memory of its request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message
from triptych.errors import DeadlineExceededError, InvalidRequestError
from triptych.v1 import models_pb2
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, usable_request_id
from triptych_common.rpc.principal import ANONYMOUS

from triptych_gateway.access.grant import Grant
from triptych_gateway.body_budget import BodyHold
from triptych_gateway.file_parts import run_sized
from triptych_gateway.record import RequestRecord
from triptych_gateway.rpc.wire import Media, parse_apart
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway

M = TypeVar("M", bound=Message)
#: Methods for operators' keys. All others need any key.
OPERATOR_METHODS = frozenset(
    {"/triptych.v1.GenerationService/GetLoad"}
    | {
        f"/{method.containing_service.full_name}/{method.name}"
        for method in models_pb2.DESCRIPTOR.services_by_name["ModelManagerService"].methods
    }
)
#: A larger request is parsed in a thread. An empty message in it takes two bytes, and microseconds of Python.
SMALL_BYTES = 4 << 10
#: Memory of a request while it is parsed, as a multiple of its bytes: itself, and the message with its files.
_MEMORY_FACTOR = 2


class Call:
    """One call: its record, what it may do, and the memory of its request.

    Args:
        method: as /package.Service/Method.
        metadata: that the client sent.
    """

    grant: Grant

    def __init__(
        self, gateway: Gateway, method: str, metadata: Mapping[str, str | bytes], context: grpc.aio.ServicerContext
    ) -> None:
        self.gateway, self.method, self.context = gateway, method, context
        given = metadata.get(REQUEST_ID_KEY)
        self.record = RequestRecord(usable_request_id(given if isinstance(given, str) else None))
        self.metadata = metadata
        self.tenant = ANONYMOUS.tenant
        #: The media of the request. Their files were cut out of it.
        self.media: list[Media] = []
        self._hold: BodyHold | None = None
        #: Called when the call was answered.
        self.on_success: list[Callable[[], None]] = []

    @property
    def client(self) -> str:
        """The address that the call came from, without its port."""
        # ipv4:127.0.0.1:40000 or ipv6:%5B::1%5D:40000
        return unquote(self.context.peer()).partition(":")[2].rpartition(":")[0].strip("[]")

    @property
    def rates(self) -> tuple[tuple[str, str], ...]:
        """What the key may still do, as trailing metadata."""
        return tuple((name.decode(), value.decode()) for name, value in self.record.rate_headers.items())

    def use_model(self, name: str) -> None:
        """Note the model, and refuse it if the key does not have it."""
        self.grant.use_model(name or None, self.gateway.served_models)

    def release(self) -> None:
        """Give the memory of the request back: it is no longer kept."""
        if self._hold is not None:
            self._hold.release()

    @asynccontextmanager
    async def granted(self) -> AsyncIterator[None]:
        """The block is what the caller's key permits. Raises AccessDeniedError."""
        access, record = self.gateway.access, self.record
        headers = {key: value for key, value in self.metadata.items() if isinstance(value, str)}
        self.grant = await access.admit(headers, record, for_operators=self.method in OPERATOR_METHODS)
        self.tenant = self.grant.key.principal.tenant
        try:
            await self.grant.begin()
            yield
            for note in self.on_success:
                note()
        except (asyncio.CancelledError, grpc.aio.BaseError):
            # Now, because the grant's end settles what a client that left has used.
            record.is_aborted = True
            raise
        finally:
            self.release()
            self.grant.end()

    async def read(self, cls: type[M], requests: AsyncIterator[bytes]) -> M:
        """The only request of a call that does not stream them. Its files are in `media`.

        Raises:
            InvalidRequestError: it is no such message, or it is too large.
            DeadlineExceededError: it did not arrive in time.
            QueueFullError: there is no memory for it.
        """
        content = await next_message(requests, self.gateway.settings)
        if content is None:
            raise InvalidRequestError("the call has no request")
        self._hold = await self.gateway.bodies.taken(self.tenant, len(content) * _MEMORY_FACTOR)
        self._hold.complete()
        request, self.media = await run_sized(len(content), partial(parse_apart, cls, content), SMALL_BYTES)
        self._hold.shrink(sum(len(content) for *_, content in self.media if content is not None) + request.ByteSize())
        return request


async def next_message(requests: AsyncIterator[bytes], settings: GatewaySettings) -> bytes | None:
    """The next message of a client; None at the end. Raises what `Call.read` raises."""
    timeout_s, limit = settings.body_timeout_s, settings.max_body_bytes
    try:
        async with asyncio.timeout(timeout_s):
            content = await anext(requests, None)
    except TimeoutError:
        message = f"the request did not arrive within {timeout_s:g} s (body_timeout_s)"
        raise DeadlineExceededError(message, limit=timeout_s) from None
    if content is not None and len(content) > limit:
        message = f"the request has {len(content)} bytes, more than {limit} (max_body_bytes)"
        raise InvalidRequestError(message, limit=limit, value=len(content))
    return content


#: The call that the current task answers.
call_var: ContextVar[Call] = ContextVar("call")
