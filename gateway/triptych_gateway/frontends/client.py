"""The gateway's side of the frontend: its gRPC services, and whether it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from triptych_common.pb import (
    common_pb2,
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)
from triptych_common.rpc.channels import MAX_MESSAGE_BYTES, open_channel
from triptych_common.rpc.control import READINESS
from triptych_common.rpc.errors import InvalidRequestError, ModelNotFoundError, ServiceUnavailableError, TriptychError
from triptych_common.rpc.interceptors import REQUEST_ID_KEY
from triptych_common.rpc.status import from_rpc_error, has_details

from triptych_gateway.frontends.session import FrontendSession, Request

log = logging.getLogger(__name__)
Response = TypeVar("Response")
#: Pause before the frontend's readiness is asked for again, in seconds.
_WATCH_PAUSE_S = 0.5


class FrontendClient:
    """Calls the frontend. Each method raises TriptychError, and leaves no call behind."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)
        self._generation = generation_pb2_grpc.GenerationServiceStub(self._channel)
        self._preprocess = preprocess_pb2_grpc.PreprocessServiceStub(self._channel)
        self._detokenize = detokenize_pb2_grpc.DetokenizeServiceStub(self._channel)
        self._session: FrontendSession | None = None
        self.health = health_pb2_grpc.HealthStub(self._channel)

    async def generate(
        self, requests: Sequence[Request], request_ids: Sequence[str]
    ) -> AsyncGenerator[list[tuple[int, generation_pb2.GenerationCallResponse]], None]:
        """What is new in one Chat or Complete call per request, each response with the place of its request.

        Nothing is sent before the first item is asked for. The first error ends all calls; closing the generator cancels them.
        """
        if self._session is None or not self._session.is_open:
            self._session = FrontendSession(self._generation.Session(), self.address)
        calls = self._session.start(requests, request_ids)
        try:
            while responses := await calls.next():
                yield responses
        finally:
            calls.close()

    async def models(self, request_id: str) -> Sequence[common_pb2.ModelInfo]:
        """The models that can be named."""
        call = self._generation.ListModels(generation_pb2.ListModelsRequest(), metadata=_metadata(request_id))
        return (await self._response(call)).models

    async def model(self, name: str, request_id: str) -> common_pb2.ModelInfo:
        """The model of that name. Raises ModelNotFoundError when there is none."""
        models = await self.models(request_id)
        for model in models:
            if model.name == name:
                return model
        served = ", ".join(model.name for model in models)
        raise ModelNotFoundError(f"no model {name[:100]!r} here; served are: {served}", field="model")

    async def preprocess(self, request: preprocess_pb2.PreprocessRequest, request_id: str) -> preprocess_pb2.PreprocessResponse:
        """Messages to token ids."""
        return await self._response(self._preprocess.Preprocess(request, metadata=_metadata(request_id)))

    async def tokenize(self, request: preprocess_pb2.TokenizeRequest, request_id: str) -> preprocess_pb2.TokenizeResponse:
        """Text to token ids."""
        return await self._response(self._preprocess.Tokenize(request, metadata=_metadata(request_id)))

    async def detokenize(self, request: detokenize_pb2.DetokenizeRequest, request_id: str) -> detokenize_pb2.DetokenizeResponse:
        """Token ids to text."""
        return await self._response(self._detokenize.Detokenize(request, metadata=_metadata(request_id)))

    async def close(self) -> None:
        """Cancels what is left and closes the connection."""
        if self._session is not None:
            await self._session.close()
        await self._channel.close()

    async def _response(self, call: Awaitable[Response]) -> Response:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._translated(error) from None

    def _translated(self, error: grpc.aio.AioRpcError) -> TriptychError:
        """The frontend's own error, or what the transport's error means to a client."""
        if has_details(error):
            return from_rpc_error(error)
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            log.warning("frontend at %s is away: %s", self.address, error.details())
            return ServiceUnavailableError("the model's frontend is away; try again")
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidRequestError(
                f"the request or its answer is larger than {MAX_MESSAGE_BYTES} bytes", limit=MAX_MESSAGE_BYTES
            )
        return from_rpc_error(error)


def _metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    return ((REQUEST_ID_KEY, request_id),)


class FrontendWatch:
    """Knows whether the frontend is ready, and which models it has, without asking per request."""

    def __init__(self, client: FrontendClient) -> None:
        self._client = client
        self._fingerprints: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self.is_ready = False
        #: Why not, for people.
        self.reason = "not asked yet"

    def fingerprint(self, model: str) -> str | None:
        """OpenAI's system_fingerprint of a model; None before the frontend was ready."""
        return self._fingerprints.get(model)

    def start(self) -> None:
        """Watch from now on."""
        self._task = asyncio.create_task(self._watch_forever(), name="frontend-watch")

    async def stop(self) -> None:
        """Watch no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch_forever(self) -> None:
        while True:
            try:
                await self._watch()
                self._lost("the frontend ended the health watch")
            except grpc.aio.AioRpcError as error:
                self._lost(f"the frontend is away ({error.code().name})")
            except TriptychError as error:
                self._lost(error.message)
            await asyncio.sleep(_WATCH_PAUSE_S)

    async def _watch(self) -> None:
        """Follow one health stream until it ends."""
        request = health_pb2.HealthCheckRequest(service=READINESS)
        call = self._client.health.Watch(request)
        with contextlib.ExitStack() as stack:
            stack.callback(call.cancel)
            async for response in call:
                if response.status != health_pb2.HealthCheckResponse.SERVING:
                    self._lost("the frontend is not ready")
                    continue
                models = await self._client.models("gateway-watch")
                self._fingerprints = {model.name: f"fp_{model.fingerprint[:12]}" for model in models if model.fingerprint}
                if not self.is_ready:
                    log.info("frontend at %s is ready: %s", self._client.address, ", ".join(model.name for model in models))
                self.is_ready, self.reason = True, ""

    def _lost(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("not ready: %s", reason)
        self.is_ready, self.reason = False, reason
