"""The services of one model as processes: started and ended by the supervisor, put to sleep and woken by their control ports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc
from triptych.errors import InternalError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.settings import GrpcServiceSettings

from triptych_cli.manager.model import Usage
from triptych_cli.stack.ports import connect_host
from triptych_cli.stack.service import Service, spec
from triptych_cli.stack.supervisor import ServiceFailedError, Supervisor

log = logging.getLogger(__name__)
#: How long a model that has to give way may work on what it has begun, in seconds. What is left then is ended with an error.
DRAIN_S = 600.0
#: What a service needs besides to give memory back or to take it, its restart included, in seconds.
_CHANGE_S = 600.0
#: Pause before a service that starts is asked again, in seconds.
_PAUSE_S = 0.3
_USAGE_S = 2.0


class ModelProcesses:
    """Implements `ModelServices`.

    Args:
        services: of the model, in start order.
        tls: an operator's certificate, if the services have mutual TLS.
        on_change: told the model's frontends when they come, and that there are none when they go.
    """

    def __init__(
        self,
        services: Sequence[Service],
        supervisor: Supervisor,
        tls: Tls | None,
        on_change: Callable[[list[str]], None] = lambda frontends: None,
    ) -> None:
        self._services, self._supervisor, self._tls, self._on_change = services, supervisor, tls, on_change
        self._names = {service.name for service in services}
        self._frontends = [service for service in services if service.kind == "frontend"]
        #: Those that hold memory: encoders and engines.
        self._workers = [service for service in services if service.kind != "frontend"]
        self._runs = False
        #: Whether all have slept since they were started or woken.
        self._has_slept = False

    async def start(self) -> None:
        if not self._runs:
            self._runs = True
            await self._supervisor.add([spec(service) for service in self._services])
            self._on_change([service.address for service in self._frontends])
        errors: list[ServiceFailedError] = []
        for service in self._services:
            try:
                await self._supervisor.until_ready({service.name})
            except ServiceFailedError as error:
                errors.append(error)
        # Text is served without encoders, and by one of several engines.
        for kind in ("engine", "frontend"):
            if not any(self._supervisor.runs(service.name) for service in self._services if service.kind == kind):
                last = next(error for error in errors if kind in str(error))
                await self.stop()  # so that waking starts all of them anew
                raise InternalError("; ".join([str(last), *last.last_lines[-1:]])) from last

    async def stop(self) -> None:
        if self._runs:
            self._on_change([])
            with contextlib.suppress(TriptychError):
                await asyncio.gather(*(self._drain(frontend) for frontend in self._frontends))
            await self._supervisor.remove(self._names)
        self._runs = self._has_slept = False

    async def sleep(self) -> None:
        if not self._runs:
            return
        if not self._has_slept:
            await self._all(self._frontends, self._drain)
        await self._all(self._workers, self._put_to_sleep)
        self._has_slept = True

    async def wake(self) -> None:
        self._has_slept = False
        if not self._runs:
            await self.start()
        await self._all(self._workers, self._wake)
        await self._all(self._frontends, self._wake)

    async def usage(self) -> Usage:
        loads = await asyncio.gather(*(self._load(frontend) for frontend in self._frontends))
        infos = await asyncio.gather(*(self._info(service) for service in self._services))
        return Usage(
            sum(load.num_live_requests for load in loads),
            min((load.idle_s for load in loads), default=0.0),
            sum(info.resident_bytes for info in infos),
        )

    async def _all(self, services: Sequence[Service], change: Callable[[Service], Awaitable[None]]) -> None:
        """Change services, and wait until all changes have ended. Raises the first error, but not of encoders: text needs none.

        Those that did not start at all are left out.
        """
        running = [service for service in services if self._supervisor.runs(service.name)]
        outcomes = await asyncio.gather(*map(change, running), return_exceptions=True)
        for service, outcome in zip(running, outcomes, strict=True):
            if isinstance(outcome, TriptychError) and service.kind == "encoder":
                log.warning("%s: %s", service.name, outcome.message)
            elif isinstance(outcome, BaseException):
                raise outcome

    async def _drain(self, frontend: Service) -> None:
        request = control_pb2.DrainRequest(timeout_s=DRAIN_S)
        await self._changed(frontend, lambda control: control.Drain(request, timeout=DRAIN_S + _CHANGE_S, wait_for_ready=True))

    async def _put_to_sleep(self, worker: Service) -> None:
        # Asked again, only what was started anew has something to give back.
        if not self._has_slept or (await self._info(worker)).instance.state == common_pb2.SERVER_STATE_SERVING:
            request = control_pb2.SleepRequest(timeout_s=0, level=2)
            await self._changed(worker, lambda control: control.Sleep(request, timeout=_CHANGE_S, wait_for_ready=True))

    async def _wake(self, service: Service) -> None:
        request = control_pb2.WakeUpRequest()
        await self._changed(service, lambda control: control.WakeUp(request, timeout=_CHANGE_S, wait_for_ready=True))

    async def _changed(self, service: Service, call: Callable[[Any], Awaitable[Any]]) -> None:
        """Make a call that changes a service. One that starts again is waited for.

        Raises:
            TriptychError: it does not answer in time, or says that it cannot.
        """
        end_s = time.monotonic() + _CHANGE_S
        while True:
            try:
                async with self._control(service) as control:
                    await call(control)
                return
            except ServiceUnavailableError:  # away, or loading
                if time.monotonic() > end_s or not self._supervisor.runs(service.name):
                    raise
            await asyncio.sleep(_PAUSE_S)

    async def _load(self, frontend: Service) -> generation_pb2.GetLoadResponse:
        async with open_channel(frontend.address, (), self._tls, Role.FRONTEND) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                response: Any = await stub.GetLoad(generation_pb2.GetLoadRequest(), timeout=_USAGE_S)
                return response
        return generation_pb2.GetLoadResponse()

    async def _info(self, service: Service) -> control_pb2.GetServerInfoResponse:
        info = control_pb2.GetServerInfoResponse()
        with contextlib.suppress(TriptychError):
            async with self._control(service) as control:
                info.CopyFrom(await control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=_USAGE_S))
        return info

    @contextlib.asynccontextmanager
    async def _control(self, service: Service) -> AsyncIterator[Any]:
        """The control port of a service. Raises TriptychError, of a call in the block."""
        settings = service.settings
        assert isinstance(settings, GrpcServiceSettings)  # noqa: S101
        address = f"{connect_host(settings.control_host)}:{settings.resolved_control_port}"
        async with open_channel(address, (), self._tls, Role(service.kind)) as channel:
            try:
                yield control_pb2_grpc.ControlServiceStub(channel)
            except grpc.aio.AioRpcError as error:
                if has_details(error):
                    raise from_rpc_error(error) from None
                message = f"{service.name} does not answer: {error.details()}"
                raise ServiceUnavailableError(message, retry_after_s=5.0) from None
