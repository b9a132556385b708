"""The connection to one frontend: one `GenerationService.Session` stream carries the calls of all clients."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import grpc
from triptych.errors import InvalidRequestError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error, has_details, is_lost
from triptych.v1 import common_pb2, detokenize_pb2_grpc, generation_pb2, generation_pb2_grpc, preprocess_pb2_grpc
from triptych_common.cluster.session import HANDSHAKE_TIMEOUT_S, SessionConnection
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, WORK_TIMEOUT_S, open_channel, was_closed
from triptych_common.rpc.security.tls import Tls

from triptych_gateway.frontends.calls import Calls, FrontendCall

log = logging.getLogger(__name__)
T = TypeVar("T")
AWAY = "the model's frontend is away; try again"
#: Files of a call up to this total size are sent in the call, because an upload would cost one more round trip.
MAX_INLINE_FILE_BYTES = 256 << 10
#: Pause before the health watch is started again, in seconds.
_WATCH_PAUSE_S = 1.0
#: Time between two descriptions of a frontend's models, in seconds.
_DESCRIBE_INTERVAL_S = 5.0
#: Both event loops copy a message several times. A message of 1 MiB delays all streams for milliseconds, and its buffers need newly
#: mapped memory pages.
_UPLOAD_CHUNK_BYTES = 64 << 10
#: Concurrent uploads to one frontend.
_MAX_UPLOADS = 2
#: By default, channels to one address share a TCP connection. This option gives the channel its own.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]

_Request = generation_pb2.GenerationServiceSessionRequest
_Response = generation_pb2.GenerationServiceSessionResponse


class FrontendConnection(SessionConnection[Calls, _Request, _Response]):
    """The session with the frontend at one address, the stubs of its other services, and a channel for files."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        super().__init__("frontend", address, tls, _Request, _Response)
        self.generation = generation_pb2_grpc.GenerationServiceStub(self.channel)
        self.preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self.channel)
        self.detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self.channel)
        self.models: Sequence[common_pb2.ModelInfo] = ()
        #: Whether its readiness is SERVING, so that it has an engine.
        self._is_serving = False
        #: HTTP requests that are being sent here and are not carried yet, for example because their files are uploaded.
        self.num_coming = 0
        self._numbers = itertools.count(1)
        self._upload_channel: grpc.aio.Channel | None = None
        self._uploads = asyncio.Semaphore(_MAX_UPLOADS)

    def serves(self, model: str) -> bool:
        """Whether it serves the model of this name, as far as it was ever heard of. Every frontend serves the empty name."""
        return not model or any(info.name == model and not info.parent for info in self.models)

    @property
    def is_ready(self) -> bool:
        return super().is_ready and self._is_serving

    @property
    def takes_calls(self) -> bool:
        """Whether calls can be sent. A frontend that is not ready refuses them with the reason."""
        return super().is_ready

    @property
    def load(self) -> int:
        return len(self.carried) + self.num_coming

    async def carry(self, calls: Calls) -> None:
        """Send the files of calls, then queue the calls.

        Raises:
            ServiceUnavailableError: the frontend is away, or was restarted meanwhile, so that it does not have the files.
            TriptychError: a request is too large, or a file was refused.
        """
        instance_id = self.instance_id
        self.num_coming += 1
        try:
            for call in calls.calls:
                await self._send_files(call, calls.context)
            if not self.takes_calls or self.instance_id != instance_id:
                raise self.loss()
            if calls.is_live:
                self.send(calls, calls.context)
        finally:
            self.num_coming -= 1

    async def _send_files(self, call: FrontendCall, context: common_pb2.CallContext) -> None:
        """Put the files of a call into its request, or upload them."""
        is_small = sum(len(file.content) for file in call.files) <= MAX_INLINE_FILE_BYTES
        for file in call.files:
            if is_small:
                file.item.data = file.content
            else:
                file.item.upload_id = await self.answered(partial(self.upload, file.content, context))

    async def answered(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a unary call. Raises TriptychError; ServiceUnavailableError also if the channel was closed during the call."""
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None
        except (grpc.aio.UsageError, asyncio.CancelledError) as error:
            if was_closed(error):
                raise self.loss() from None
            raise

    def _translated(self, error: grpc.aio.AioRpcError) -> TriptychError:
        """The frontend's own error, or a client-facing error for a transport error."""
        if has_details(error):
            return from_rpc_error(error)
        # gRPC calls a write on a connection that was just lost an internal error. A frontend's own internal error has details.
        if is_lost(error) or error.code() is grpc.StatusCode.INTERNAL:
            log.warning("frontend at %s is away: %s", self.address, error.details())
            return self.loss()
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            message = f"the request or its answer is larger than {MAX_MESSAGE_BYTES} bytes"
            return InvalidRequestError(message, limit=MAX_MESSAGE_BYTES)
        return from_rpc_error(error)

    def send(self, calls: Calls, context: common_pb2.CallContext) -> None:
        """Queue calls for sending. Calls that are queued in the same iteration of the event loop are sent in one message.

        Raises:
            InvalidRequestError: a request is too large.
        """
        for call in calls.calls:
            self.check_size(call.request)
        numbers = list(itertools.islice(self._numbers, len(calls.calls)))
        for number, call in zip(numbers, calls.calls, strict=True):
            message = generation_pb2.GenerationCall(
                number=number, request_id=call.request_id, output_mode=call.output_mode, context=context
            )
            if isinstance(call.request, generation_pb2.ChatRequest):
                message.chat.CopyFrom(call.request)
            else:
                message.complete.CopyFrom(call.request)
            self.start(number, calls, message)
        calls.sent(self, numbers)

    def cancel(self, number: int) -> None:
        """Cancel a call, and ignore its further responses."""
        if self.carried.pop(number, None) is not None:
            self.ending().cancel.append(number)

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
                raise self.loss()
            if self._upload_channel is None:
                self._upload_channel = open_channel(self.address, _OWN_CONNECTION, self._tls)
            stub = generation_pb2_grpc.GenerationServiceStub(self._upload_channel)
            return (await stub.UploadMedia(parts(), timeout=WORK_TIMEOUT_S)).upload_id

    async def serve(self) -> str:
        await self._describe()
        return await super().serve()

    def open(self) -> grpc.aio.StreamStreamCall[_Request, _Response]:
        return self.generation.Session()

    def greeted(self, first: _Response) -> None:
        self.connected(first.instance, self.models[0] if self.models else common_pb2.ModelInfo())

    def beside(self) -> list[Coroutine[Any, Any, None]]:
        return [self._watch_readiness(), self._watch_models()]

    def add_starts(self, message: _Request, starts: list[generation_pb2.GenerationCall]) -> None:
        message.start.extend(starts)

    def received(self, response: _Response) -> None:
        for answer in response.responses:
            calls = self.carried.get(answer.number)
            if calls is None:
                continue
            if answer.HasField("usage") or answer.HasField("error"):
                del self.carried[answer.number]
                calls.put_last(answer.number, answer)
            else:
                calls.put(answer.number, answer)
        if response.going_away:
            self.goes_away()

    def loss(self) -> ServiceUnavailableError:
        # The reason why the stream ended does not concern single calls, so all get the same error.
        return ServiceUnavailableError(AWAY)

    async def disconnected(self) -> None:
        self._is_serving = False
        await super().disconnected()
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
                async with aclosing(self.readiness()) as changes:
                    async for is_serving in changes:
                        await self._note_readiness(is_serving)
            except grpc.aio.AioRpcError as error:
                log.debug("the health watch of the frontend at %s ended: %s", self.address, error.code().name)
            except Exception:
                log.exception("unexpected error of the health watch of the frontend at %s", self.address)
            await asyncio.sleep(_WATCH_PAUSE_S)

    async def _watch_models(self) -> None:
        """Follow what the models are: adapters come, go and are replaced. Until the session ends."""
        while True:
            await asyncio.sleep(_DESCRIBE_INTERVAL_S)
            try:
                await self._describe()
            except grpc.aio.AioRpcError as error:
                log.debug("the frontend at %s does not describe its models: %s", self.address, error.code().name)
            except Exception:
                log.exception("unexpected error of the description of the frontend at %s", self.address)

    async def _note_readiness(self, is_serving: bool) -> None:
        if is_serving:
            await self._describe()
        self._is_serving = is_serving
        if not self.is_going_away:
            self.why_away = "" if is_serving else "the frontend is not ready"
        self.on_change()
