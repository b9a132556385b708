"""The connection to one frontend: one `GenerationService.Session` stream carries the calls of all clients."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Sequence

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych.errors import InvalidRequestError, ServiceUnavailableError
from triptych.v1 import common_pb2, detokenize_pb2_grpc, generation_pb2, generation_pb2_grpc, preprocess_pb2_grpc
from triptych_common.cluster.connection import Connection
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, WORK_TIMEOUT_S, open_channel
from triptych_common.rpc.control import READINESS
from triptych_common.rpc.security.tls import Tls

from triptych_gateway.frontends.calls import Calls, Response

log = logging.getLogger(__name__)
HANDSHAKE_TIMEOUT_S = 30.0
#: Pause before the health watch is started again, in seconds.
_WATCH_PAUSE_S = 1.0
#: Limit for one request, and for all requests in one message. A larger message would fail the stream, and with it all calls.
_MAX_START_BYTES = MAX_MESSAGE_BYTES // 2
#: Both event loops copy a message several times. A message of 1 MiB delays all streams for milliseconds, and its buffers need newly
#: mapped memory pages.
_UPLOAD_CHUNK_BYTES = 64 << 10
#: Concurrent uploads to one frontend.
_MAX_UPLOADS = 2
#: By default, channels to one address share a TCP connection. This option gives the channel its own.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]

_Stream = grpc.aio.StreamStreamCall[generation_pb2.GenerationServiceSessionRequest, generation_pb2.GenerationServiceSessionResponse]


class FrontendConnection(Connection):
    """The session with the frontend at one address, the stubs of its other services, and a channel for files."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        super().__init__("frontend", address, tls)
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self.channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self.channel)
        self._health = health_pb2_grpc.HealthStub(self.channel)
        self.models: Sequence[common_pb2.ModelInfo] = ()
        #: Whether its readiness is SERVING, so that it has an engine.
        self._is_serving = False
        #: HTTP requests that are being sent here and are not in `_calls` yet, for example because their files are uploaded.
        self.num_coming = 0
        self._numbers = itertools.count(1)
        #: number of a call -> the `Calls` that it belongs to
        self._calls: dict[int, Calls] = {}
        self._starts: list[generation_pb2.GenerationCall] = []
        self._cancels: list[int] = []
        self._has_requests = asyncio.Event()
        self._upload_channel: grpc.aio.Channel | None = None
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)

    def serves(self, model: str) -> bool:
        """Whether it serves the model of this name, as far as it was ever heard of. Every frontend serves the empty name."""
        return not model or any(info.name == model for info in self.models)

    @property
    def is_ready(self) -> bool:
        return super().is_ready and self._is_serving

    @property
    def takes_calls(self) -> bool:
        """Whether calls can be sent. A frontend that is not ready refuses them with the reason."""
        return super().is_ready

    @property
    def load(self) -> int:
        return len(self._calls) + self.num_coming

    def start(self, calls: Calls, context: common_pb2.CallContext) -> None:
        """Queue calls for sending. Calls that are queued in the same iteration of the event loop are sent in one message.

        Raises:
            InvalidRequestError: a request is too large.
        """
        for call in calls.calls:
            if (num_bytes := call.request.ByteSize()) > _MAX_START_BYTES:
                raise InvalidRequestError(
                    f"the request, encoded for the frontend, may have at most {_MAX_START_BYTES} bytes; it has {num_bytes}",
                    limit=_MAX_START_BYTES,
                    value=num_bytes,
                )
        numbers = list(itertools.islice(self._numbers, len(calls.calls)))
        for number, call in zip(numbers, calls.calls, strict=True):
            message = generation_pb2.GenerationCall(
                number=number, request_id=call.request_id, output_mode=call.output_mode, context=context
            )
            if isinstance(call.request, generation_pb2.ChatRequest):
                message.chat.CopyFrom(call.request)
            else:
                message.complete.CopyFrom(call.request)
            self._calls[number] = calls
            self._starts.append(message)
        calls.sent(self, numbers)
        self._has_requests.set()

    def cancel(self, number: int) -> None:
        """Cancel a call, and ignore its further responses."""
        if self._calls.pop(number, None) is not None:
            self._cancels.append(number)
            self._has_requests.set()

    async def upload(self, content: bytes, context: common_pb2.CallContext) -> str:
        """Upload a file on a separate connection, so that it does not delay calls. Returns its upload id.

        Raises:
            ServiceUnavailableError: the connection was lost before the upload started.
            AioRpcError: the upload failed.
        """

        async def parts() -> AsyncIterator[generation_pb2.UploadMediaRequest]:
            header = generation_pb2.UploadMediaHeader(num_bytes=len(content), context=context)
            yield generation_pb2.UploadMediaRequest(header=header)
            for start in range(0, len(content), _UPLOAD_CHUNK_BYTES):
                yield generation_pb2.UploadMediaRequest(data=content[start : start + _UPLOAD_CHUNK_BYTES])

        async with self._uploads:
            if not self.is_connected:
                raise ServiceUnavailableError("the model's frontend is away; try again")
            if self._upload_channel is None:
                self._upload_channel = open_channel(self.address, _OWN_CONNECTION, self._tls)
            stub = generation_pb2_grpc.GenerationServiceStub(self._upload_channel)
            return (await stub.UploadMedia(parts(), timeout=WORK_TIMEOUT_S)).upload_id

    async def serve(self) -> str:
        await self._describe()
        session: _Stream = self.generation.Session()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                first = await session.read()
            if not isinstance(first, generation_pb2.GenerationServiceSessionResponse):  # grpc.aio.EOF
                return "it ended the session at once"
            self.connected(first.instance, self.models[0] if self.models else common_pb2.ModelInfo())
            tasks = [asyncio.create_task(self._send(session)), asyncio.create_task(self._watch_readiness())]
            while isinstance(message := await session.read(), generation_pb2.GenerationServiceSessionResponse):
                for response in message.responses:
                    self._dispatch(response)
                if message.going_away:
                    self.goes_away()
            return "it ended the session"
        finally:
            session.cancel()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def disconnected(self) -> None:
        self._is_serving = False
        self._starts.clear()
        self._cancels.clear()
        calls, self._calls = dict.fromkeys(self._calls.values()), {}
        # The reason why the stream ended does not concern single calls, so all get the same error.
        error = ServiceUnavailableError("the model's frontend is away; try again")
        self.tell_lost(calls, error)
        if self._upload_channel is not None:
            channel, self._upload_channel = self._upload_channel, None
            await channel.close()

    async def _describe(self) -> None:
        request = generation_pb2.GenerationServiceDescribeRequest()
        self.models = (await self.generation.Describe(request, timeout=HANDSHAKE_TIMEOUT_S)).models

    async def _watch_readiness(self) -> None:
        """Track whether the frontend is ready, until the session ends."""
        while True:
            try:
                await self._watch_once()
            except grpc.aio.AioRpcError as error:
                log.debug("the health watch of the frontend at %s ended: %s", self.address, error.code().name)
            except Exception:
                log.exception("unexpected error of the health watch of the frontend at %s", self.address)
            await asyncio.sleep(_WATCH_PAUSE_S)

    async def _watch_once(self) -> None:
        watch = self._health.Watch(health_pb2.HealthCheckRequest(service=READINESS))
        try:
            async for response in watch:
                is_serving = response.status == health_pb2.HealthCheckResponse.SERVING
                if is_serving:
                    await self._describe()
                self._is_serving = is_serving
                if not self.is_going_away:
                    self.why_away = "" if is_serving else "the frontend is not ready"
                self.on_change()
        finally:
            watch.cancel()

    def _dispatch(self, response: Response) -> None:
        number = response.number
        if response.HasField("usage") or response.HasField("error"):
            if calls := self._calls.pop(number, None):
                calls.put_last(number, response)
        elif calls := self._calls.get(number):
            calls.put(number, response)

    async def _send(self, session: _Stream) -> None:
        """Send queued starts and cancellations until the stream is lost. The reader then reports the loss."""
        while True:
            await self._has_requests.wait()
            self._has_requests.clear()
            while self._starts or self._cancels:
                message = generation_pb2.GenerationServiceSessionRequest(start=self._next_starts())
                if not self._starts:  # a cancellation must not overtake its own call
                    message.cancel.extend(self._cancels)
                    self._cancels = []
                try:
                    await session.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    return

    def _next_starts(self) -> list[generation_pb2.GenerationCall]:
        num_bytes, num_calls = 0, 0
        for call in self._starts:
            num_bytes += call.ByteSize()
            if num_calls and num_bytes > _MAX_START_BYTES:
                break
            num_calls += 1
        starts, self._starts = self._starts[:num_calls], self._starts[num_calls:]
        return starts
