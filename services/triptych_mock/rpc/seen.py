"""What the mock saw of each call, and the service that tells it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from google.protobuf.message import Message
from triptych.mock.v1 import mock_pb2, mock_pb2_grpc
from triptych.v1 import common_pb2
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, wrapped

#: Calls that are remembered.
_MAX_CALLS = 10_000
_State = mock_pb2.SeenCall.State
#: The call that the current task serves.
current_call: ContextVar[Seen | None] = ContextVar("current_call", default=None)


class Seen:
    """One call while it runs.

    Args:
        record: what is told of it.
        num_earlier: calls with the same id before this one.
        on_end: called when the call has ended.
    """

    def __init__(self, record: mock_pb2.SeenCall, num_earlier: int, on_end: Callable[[], None]) -> None:
        self.record = record
        self.num_earlier = num_earlier
        self._on_end = on_end

    def sent(self, elapsed_s: float) -> None:
        """Note that a response was sent."""
        self.record.num_responses += 1
        self.record.longest_send_s = max(self.record.longest_send_s, elapsed_s)

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        cancelled = kind is not None and issubclass(kind, (asyncio.CancelledError, GeneratorExit))
        self.record.state = _State.STATE_CANCELLED if cancelled else _State.STATE_ENDED
        self._on_end()


class _Calls:
    """The calls with one id."""

    def __init__(self) -> None:
        self.records: deque[mock_pb2.SeenCall] = deque()
        #: Of all calls, the forgotten ones included.
        self.count = 0


class CallLog(mock_pb2_grpc.MockServiceServicer):
    """Remembers the calls of each x-request-id. Calls without an id are not remembered."""

    def __init__(self) -> None:
        self._calls: dict[str, _Calls] = {}  # by request id
        #: Request ids of the remembered calls, the oldest first.
        self._order: deque[str] = deque()
        self.num_live = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self, request_id: str, record: mock_pb2.SeenCall) -> Seen:
        """Note a call that arrived."""
        record.state = _State.STATE_RUNNING
        self.num_live += 1
        self._idle.clear()
        if not request_id:
            return Seen(record, 0, self._end)
        calls = self._calls.setdefault(request_id, _Calls())
        calls.records.append(record)
        calls.count += 1
        num_earlier = calls.count - 1
        self._order.append(request_id)
        if len(self._order) > _MAX_CALLS:
            self._forget(self._order.popleft())
        return Seen(record, num_earlier, self._end)

    def _forget(self, request_id: str) -> None:
        """Forget the oldest call with this id."""
        records = self._calls[request_id].records
        records.popleft()
        if not records:
            del self._calls[request_id]

    def _end(self) -> None:
        self.num_live -= 1
        if not self.num_live:
            self._idle.set()

    async def until_idle(self) -> None:
        """Return when no call is live."""
        await self._idle.wait()

    async def GetCalls(self, request: mock_pb2.GetCallsRequest, context: grpc.aio.ServicerContext) -> mock_pb2.GetCallsResponse:
        calls = self._calls.get(request.request_id)
        return mock_pb2.GetCallsResponse(calls=calls.records if calls else ())


class SeenInterceptor(grpc.aio.ServerInterceptor):
    """Notes each call of Triptych's services in the log."""

    def __init__(self, log: CallLog) -> None:
        self._log = log

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        method: str = handler_call_details.method
        if handler is None or not method.startswith("/triptych.v1."):
            return handler
        entries = [
            (key, value)
            for key, value in handler_call_details.invocation_metadata or ()
            if isinstance(value, str) and key != "authorization"
        ]
        record = mock_pb2.SeenCall(method=method, metadata=dict(entries))
        return wrapped(handler, lambda behaviour: self._observed(behaviour, record))

    def _begin(self, record: mock_pb2.SeenCall, request: Any, context: grpc.aio.ServicerContext) -> Seen:
        remaining_s = context.time_remaining()
        if remaining_s is not None:
            record.timeout_s = remaining_s
        if isinstance(request, Message):
            record.media_bytes = media_bytes(request)
        seen = self._log.begin(record.metadata[REQUEST_ID_KEY], record)
        current_call.set(seen)
        return seen

    def _observed(self, behaviour: Callable[..., Any], record: mock_pb2.SeenCall) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(behaviour):

            async def stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
                with self._begin(record, request, context) as seen:
                    async with contextlib.aclosing(behaviour(request, context)) as responses:
                        async for response in responses:
                            start_s = time.monotonic()
                            yield response
                            seen.sent(time.monotonic() - start_s)

            return stream

        async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
            with self._begin(record, request, context) as seen:
                response = await behaviour(request, context)
                seen.sent(0.0)
                return response

        return unary


def media_bytes(request: Message) -> int:
    """The bytes of all media files in a message."""
    if isinstance(request, common_pb2.MediaItem):
        return len(request.data)
    total = 0
    for field, value in request.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        items = [value] if isinstance(value, Message) else value
        total += sum(map(media_bytes, items))
    return total
