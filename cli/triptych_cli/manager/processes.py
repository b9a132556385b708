"""The services of one model as processes: started and ended by the supervisor, put to sleep and woken by their control ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc
from triptych.errors import InternalError, ServiceUnavailableError, TriptychError
from triptych.status import from_rpc_error, has_details
from triptych.v1 import common_pb2, control_pb2, control_pb2_grpc, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.channels import open_channel
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.settings import GrpcServiceSettings

from triptych_cli.manager.manager import Usage
from triptych_cli.stack.ports import connect_host
from triptych_cli.stack.service import Service, spec
from triptych_cli.stack.supervisor import ServiceFailedError, Supervisor

#: How long a model that has to give way may work on what it has begun, in seconds. What is left then is ended with an error.
DRAIN_S = 600.0
#: What a service needs besides to give memory back or to take it, in seconds.
_CHANGE_S = 120.0
_USAGE_S = 2.0
_ROLES = {"engine": Role.ENGINE, "encoder": Role.ENCODER, "frontend": Role.FRONTEND}
_SLEEPING = common_pb2.SERVER_STATE_SLEEPING


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

    async def start(self) -> None:
        if not self._runs:
            self._runs = True
            await self._supervisor.add([spec(service) for service in self._services])
            self._on_change([service.address for service in self._frontends])
        for service in self._services:
            try:
                await self._supervisor.until_ready({service.name})
            except ServiceFailedError as error:
                if service.kind != "encoder":  # text is served without it
                    raise InternalError("; ".join([str(error), *error.last_lines[-1:]])) from error

    async def stop(self) -> None:
        if self._runs:
            self._on_change([])
            with contextlib.suppress(TriptychError):
                await asyncio.gather(*(self._drain(frontend) for frontend in self._frontends))
            await self._supervisor.remove(self._names)
        self._runs = False

    async def sleep(self) -> None:
        await asyncio.gather(*(self._drain(frontend) for frontend in self._frontends))
        await asyncio.gather(*(self._put_to_sleep(worker) for worker in self._workers))

    async def wake(self) -> None:
        if not self._runs:
            await self.start()
        await asyncio.gather(*(self._wake(worker) for worker in self._workers))
        await asyncio.gather(*(self._wake(frontend) for frontend in self._frontends))

    async def usage(self) -> Usage:
        loads = await asyncio.gather(*(self._load(frontend) for frontend in self._frontends))
        infos = await asyncio.gather(*(self._info(service) for service in self._services))
        return Usage(
            sum(load.num_live_requests for load in loads),
            min((load.idle_s for load in loads), default=0.0),
            sum(info.resident_bytes for info in infos),
        )

    async def _drain(self, frontend: Service) -> None:
        async with self._control(frontend) as control:
            await control.Drain(control_pb2.DrainRequest(timeout_s=DRAIN_S), timeout=DRAIN_S + _CHANGE_S)

    async def _put_to_sleep(self, worker: Service) -> None:
        async with self._control(worker) as control:
            info = await control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=_CHANGE_S)
            if info.instance.state != _SLEEPING:
                await control.Sleep(control_pb2.SleepRequest(timeout_s=0, level=2), timeout=_CHANGE_S)

    async def _wake(self, service: Service) -> None:
        """Wake one service. Raises TriptychError if it says that it cannot, or is not there."""
        try:
            async with self._control(service, is_needed=True) as control:
                await control.WakeUp(control_pb2.WakeUpRequest(), timeout=_CHANGE_S)
        except ServiceUnavailableError:
            if service.kind != "encoder":  # text is served without it
                raise

    async def _load(self, frontend: Service) -> generation_pb2.GetLoadResponse:
        async with open_channel(frontend.address, (), self._tls, Role.FRONTEND) as channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                response: Any = await stub.GetLoad(generation_pb2.GetLoadRequest(), timeout=_USAGE_S)
                return response
        return generation_pb2.GetLoadResponse()

    async def _info(self, service: Service) -> control_pb2.GetServerInfoResponse:
        info = control_pb2.GetServerInfoResponse()
        async with self._control(service) as control:
            info.CopyFrom(await control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=_USAGE_S))
        return info

    @contextlib.asynccontextmanager
    async def _control(self, service: Service, *, is_needed: bool = False) -> AsyncIterator[Any]:
        """The control port of a service.

        Args:
            is_needed: a service that is not there is an error. By default it is none: it has no memory then. The supervisor starts
                it again, and the manager puts it to sleep if it has to.

        Raises:
            TriptychError: of a call in the block.
        """
        settings = service.settings
        assert isinstance(settings, GrpcServiceSettings)  # noqa: S101
        address = f"{connect_host(settings.control_host)}:{settings.resolved_control_port}"
        async with open_channel(address, (), self._tls, _ROLES[service.kind]) as channel:
            try:
                yield control_pb2_grpc.ControlServiceStub(channel)
            except grpc.aio.AioRpcError as error:
                if has_details(error):
                    raise from_rpc_error(error) from None
                if is_needed or error.code() is not grpc.StatusCode.UNAVAILABLE:
                    message = f"{service.name} does not answer: {error.details()}"
                    raise ServiceUnavailableError(message, retry_after_s=5.0) from None
