"""ControlService and health checks: the operator's interface of every service."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2
from pydantic_settings import BaseSettings
from triptych.errors import InvalidRequestError, ServiceUnavailableError, UnimplementedError
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc

from triptych_common.host.memory import resident_memory
from triptych_common.rpc.identity import Identity, without_secrets
from triptych_common.rpc.structs import to_struct

#: Names in grpc.health.v1 for a live process and for a service that takes requests. The empty name also means readiness.
LIVENESS = "liveness"
READINESS = "readiness"

State = common_pb2.ServerState


class Controllable(Protocol):
    """The interface of a service for its control port. `sleep` and `wake_up` are called one at a time.

    `drain` may be called at any time, also more than once. It is cancelled by a wake-up.
    """

    @property
    def state(self) -> common_pb2.ServerState: ...
    @property
    def num_live_requests(self) -> int: ...
    def model_info(self) -> common_pb2.ModelInfo | None: ...
    async def drain(self, timeout_s: float) -> bool:
        """Take no more work. Returns True if all requests ended in time."""
        ...

    async def reset_cache(self) -> int:
        """Clear cached results. Returns their number."""
        ...

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        """Release cache memory, and with `unload` the model's. Returns the number of bytes.

        Raises:
            UnimplementedError: the service has none.
        """
        ...

    async def wake_up(self) -> None: ...


class Health:
    """Readiness and liveness of one process, in grpc.health.v1.

    Liveness is SERVING as long as the event loop runs: a full queue or a lost peer is no reason for a restart.
    """

    def __init__(self, service_names: tuple[str, ...]) -> None:
        self.servicer = health.aio.HealthServicer()
        self._ready_names = ("", READINESS, *service_names)
        self.is_ready = False

    async def set_ready(self, ready: bool) -> None:
        self.is_ready = ready
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._ready_names:
            await self.servicer.set(name, status)

    async def set_alive(self) -> None:
        await self.servicer.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)


class ControlServicer(control_pb2_grpc.ControlServiceServicer):
    """Answers the control calls from a Controllable."""

    def __init__(self, identity: Identity, service: Controllable, settings: BaseSettings) -> None:
        self._identity = identity
        self._service = service
        self._settings = settings
        self._started = time.monotonic()
        #: Held by a Sleep or a WakeUp.
        self._changing_state = asyncio.Lock()
        #: Held while the service wakes up. A Drain that came in between would report a drained service that takes requests.
        self._waking = asyncio.Lock()
        #: The Drains that wait for live requests.
        self._drains: set[asyncio.Task[bool]] = set()
        self._is_stopping = False

    async def drain_for_good(self, timeout_s: float) -> bool:
        """Drain because the process stops. The service cannot be woken up after it.

        It first waits for a Sleep that is in progress, which `timeout_s` does not limit.

        Returns:
            Whether no work was left within the time.
        """
        self._is_stopping = True
        async with self._changing_state:
            return await self._service.drain(timeout_s)

    async def GetServerInfo(
        self, request: control_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GetServerInfoResponse:
        return control_pb2.GetServerInfoResponse(
            instance=self._identity.describe(self._service.state),
            uptime_s=time.monotonic() - self._started,
            process_id=os.getpid(),
            resident_bytes=resident_memory(),
            num_live_requests=self._service.num_live_requests,
            settings=to_struct(without_secrets(self._settings.model_dump(mode="json"))),
        )

    async def GetModelInfo(
        self, request: control_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.GetModelInfoResponse:
        model = self._service.model_info()
        if model is None:
            raise ServiceUnavailableError("the model is not loaded yet", retry_after_s=5)
        return control_pb2.GetModelInfoResponse(model=model)

    async def Drain(self, request: control_pb2.DrainRequest, context: grpc.aio.ServicerContext) -> control_pb2.DrainResponse:
        timeout_s = _timeout(request.timeout_s if request.HasField("timeout_s") else 30.0)
        async with self._waking:
            draining = asyncio.create_task(self._service.drain(timeout_s))
            self._drains.add(draining)
        try:
            await asyncio.wait({draining})
        finally:
            self._drains.discard(draining)
            draining.cancel()
        drained = not draining.cancelled() and draining.result()
        return control_pb2.DrainResponse(drained=drained, num_live_requests=self._service.num_live_requests)

    async def ResetCache(
        self, request: control_pb2.ResetCacheRequest, context: grpc.aio.ServicerContext
    ) -> control_pb2.ResetCacheResponse:
        return control_pb2.ResetCacheResponse(num_entries=await self._service.reset_cache())

    async def Sleep(self, request: control_pb2.SleepRequest, context: grpc.aio.ServicerContext) -> control_pb2.SleepResponse:
        timeout_s = _timeout(request.timeout_s if request.HasField("timeout_s") else 30.0)
        level = request.level if request.HasField("level") else 1
        if level not in (1, 2):
            raise InvalidRequestError(f"level must be 1 or 2; given: {level}", field="level", limit=2, value=level)
        async with self._changing_state:
            return control_pb2.SleepResponse(freed_bytes=await self._service.sleep(timeout_s, unload=level == 2))

    async def WakeUp(self, request: control_pb2.WakeUpRequest, context: grpc.aio.ServicerContext) -> control_pb2.WakeUpResponse:
        # A client that leaves must not leave a service that is half awake.
        await asyncio.shield(asyncio.create_task(self._wake_up()))
        return control_pb2.WakeUpResponse()

    async def _wake_up(self) -> None:
        async with self._changing_state, self._waking:
            if self._is_stopping:
                raise ServiceUnavailableError("the service is stopping")
            drains = list(self._drains)
            for draining in drains:
                draining.cancel()
            await asyncio.gather(*drains, return_exceptions=True)
            await self._service.wake_up()


def _timeout(value: float) -> float:
    if not 0 <= value <= 3600:
        raise InvalidRequestError(f"timeout_s must be in [0, 3600]; given: {value}", field="timeout_s", limit=3600, value=value)
    return value


def cannot_sleep(service: str) -> UnimplementedError:
    """The error of services that hold no cache memory."""
    return UnimplementedError(f"the {service} holds no cache memory to give back")
