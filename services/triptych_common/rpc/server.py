"""Runs one gRPC service: ports, health, reflection, control, signals, clean shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2
from triptych.errors import StartupError, TriptychError
from triptych.v1 import control_pb2, control_pb2_grpc

from triptych_common.host.open_files import raise_open_files_limit
from triptych_common.rpc.channels import SERVER_OPTIONS
from triptych_common.rpc.control import Controllable, ControlServicer, Health
from triptych_common.rpc.identity import Identity
from triptych_common.rpc.interceptors import CallCounts, CallInterceptor
from triptych_common.rpc.metrics_server import Collect, MetricsServer
from triptych_common.rpc.registration import Registration
from triptych_common.rpc.security.access import AccessInterceptor, check_rules
from triptych_common.rpc.security.tls import Tls
from triptych_common.settings import GrpcServiceSettings, ServiceSettings
from triptych_common.telemetry.logs import configure_logging
from triptych_common.telemetry.tracing import Tracer

log = logging.getLogger(__name__)
#: Time for streams that carry no requests, e.g. health watches, to end once the service is idle, in seconds.
_IDLE_STREAMS_GRACE_S = 0.5
_REFLECTION = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]


class ServiceServer:
    """The gRPC servers of one service: its own port, its control port, and a port for health checks if one is set.

    Args:
        name: frontend, encoder or engine.
        services: the service descriptors that this process serves, for reflection and health.
        register: adds the servicers to the given server.
        controllable: answers the control port.
        collect: the service's metrics in addition to those that all services have, when `metrics_port` is set.
        interceptors: around the calls of the service's own port, after the common one.
        tls: for the service's own port and its control port; None for no TLS. It is watched while the server runs.
        credentials: of the service's own port, instead of `tls`.
        sampling_ratio: see Tracer.
    """

    def __init__(
        self,
        name: str,
        settings: GrpcServiceSettings,
        services: Sequence[ServiceDescriptor],
        register: Callable[[grpc.aio.Server], None],
        controllable: Controllable,
        collect: Collect | None = None,
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
        tls: Tls | None = None,
        credentials: grpc.ServerCredentials | None = None,
        sampling_ratio: float = 1.0,
    ) -> None:
        self._name, self._settings = name, settings
        self._interceptors = interceptors
        self._tls = tls
        self._credentials = credentials
        self._services = services
        self._register = register
        self._controllable = controllable
        self.identity = Identity(name, settings)
        self.tracer = Tracer.to_collector(name, self.identity.id, settings.otlp_traces_endpoint, sampling_ratio)
        self.health = Health(tuple(service.full_name for service in services))
        self._control_servicer = ControlServicer(self.identity, controllable, settings)
        self._calls = CallCounts()
        self._metrics = MetricsServer(name, controllable, collect, self._calls, self.tracer, tls)
        self.port = 0
        self.control_port = 0
        #: None while there is none.
        self.health_port: int | None = None
        self._background: list[asyncio.Task[None]] = []
        #: None while metrics are off.
        self.metrics_port: int | None = None

    async def start(self) -> None:
        """Listen on all ports, alive but not ready. Raises StartupError when a port is taken, or a method has no rule of access."""
        self._main = self._server(self._services, self._interceptors)
        self._register(self._main)
        control_descriptor = control_pb2.DESCRIPTOR.services_by_name["ControlService"]
        self._control = self._server([control_descriptor])
        control_pb2_grpc.add_ControlServiceServicer_to_server(self._control_servicer, self._control)
        await self.health.set_alive()
        await self.health.set_ready(False)
        settings = self._settings
        own, control = (self._tls.server_credentials() if self._tls is not None else None for _ in range(2))
        self.port = self.identity.port = bind(self._main, settings.host, settings.port, "--port", own or self._credentials)
        self.control_port = bind(self._control, settings.control_host, settings.resolved_control_port, "--control-port", control)
        if settings.health_port is not None:
            self._health = grpc.aio.server(options=SERVER_OPTIONS)
            health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, self._health)
            self.health_port = bind(self._health, settings.host, settings.health_port, "--health-port")
            await self._health.start()
        if settings.metrics_port is not None:
            self.metrics_port = self._metrics.start(settings.host, settings.metrics_port)
        await self._main.start()
        await self._control.start()
        if self._tls is not None:
            self._background.append(asyncio.create_task(self._tls.watch(), name="certificates"))
        if settings.registry is not None:
            registration = Registration(settings.registry, self._name, self.identity.id, self._entry)
            self._background.append(asyncio.create_task(registration.run(), name="registration"))
        secured = " with mutual TLS" if self._tls is not None else ""
        control_host = settings.control_host
        log.info("listening on %s:%d%s, control on %s:%d", settings.host, self.port, secured, control_host, self.control_port)
        if self.metrics_port is not None:
            log.info("metrics at http://%s:%d/metrics", settings.host, self.metrics_port)

    def _server(
        self, services: Sequence[ServiceDescriptor], interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    ) -> grpc.aio.Server:
        check_rules([*services, health_pb2.DESCRIPTOR.services_by_name["Health"], _REFLECTION])
        first = [AccessInterceptor(self._tls)] if self._tls is not None else []
        server = grpc.aio.server(interceptors=[*first, CallInterceptor(self._calls), *interceptors], options=SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)
        names = [service.full_name for service in services]
        names += [health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, server)
        return server

    def _entry(self) -> Mapping[str, object] | None:
        """What the registry says of this service; None while it is not ready."""
        model = self._controllable.model_info()
        if not self.health.is_ready or model is None:
            return None
        return {"address": self.identity.address, "model": model.name, "fingerprint": model.fingerprint}

    async def stop(self) -> None:
        """Become not ready at once. Calls in flight may end within shutdown_grace_s; then they are cancelled."""
        await self.health.set_ready(False)
        grace_s = self._settings.shutdown_grace_s
        with contextlib.suppress(TriptychError):  # a service that is still loading has nothing to drain
            if not await self._drain(grace_s):
                log.warning("%d requests did not end within %g s", self._controllable.num_live_requests, grace_s)
        streams_s = min(_IDLE_STREAMS_GRACE_S, grace_s)
        servers = [self._main, self._control, *([self._health] if self.health_port is not None else [])]
        await asyncio.gather(*(server.stop(streams_s) for server in servers), self._metrics.stop())
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.tracer.close()

    async def _drain(self, grace_s: float) -> bool:
        # This drain may have to wait for an operator's drain or sleep, which may take longer.
        try:
            async with asyncio.timeout(grace_s + _IDLE_STREAMS_GRACE_S):
                return await self._control_servicer.drain_for_good(grace_s)
        except TimeoutError:
            return False


def bind(server: grpc.aio.Server, host: str, port: int, flag: str, credentials: grpc.ServerCredentials | None = None) -> int:
    """Bind the server. Returns the actual port. Raises StartupError, which names the flag, when the port is taken."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        return server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    except RuntimeError as error:
        raise StartupError(f"cannot listen on {host}:{port} (is the port taken?); choose another with {flag}") from error


def run_service(name: str, settings: ServiceSettings, main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run a service until SIGINT or SIGTERM. When it cannot start, log one line and exit with 1.

    Args:
        main: runs the service. It receives an event that is set when the process must stop.
    """
    configure_logging(name, settings.log_level, settings.log_format)
    gc.freeze()  # imported objects stay; a full collection would stop all streams for 30 ms to scan them
    raise_open_files_limit()

    async def until_stopped() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await main(stop)

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(until_stopped())
    except StartupError as error:
        log.error("%s", error)
        sys.exit(1)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    with contextlib.suppress(ImportError):
        import uvloop

        return uvloop.new_event_loop
    return None
