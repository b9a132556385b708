"""The state that the routes of one gateway share."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from starlette.requests import HTTPConnection, Request
from triptych.v1 import common_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.tracing import call_context
from triptych_common.telemetry.trace_context import trace_var
from triptych_common.telemetry.tracing import Tracer

from triptych_gateway.access.control import AccessControl
from triptych_gateway.access.grant import Grant
from triptych_gateway.body_budget import MEMORY_FACTOR, BodyBudget
from triptych_gateway.frontends.client import FrontendClient
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.loads import EngineLoads
from triptych_gateway.frontends.manager import ModelManagerClient
from triptych_gateway.frontends.models import MAX_WAITING_BYTES, ServedModels
from triptych_gateway.frontends.router import FrontendRouter
from triptych_gateway.generation.http import until_disconnect
from triptych_gateway.metrics import GenerationMeter, Metrics
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.stores.opening import FileStores, open_store
from triptych_gateway.wire.errors import NotFoundError

T = TypeVar("T")
_MAX_PDF_READERS, _MAX_JOINS = 2, 2
#: Two hours of sound take 500 MB in the process that cuts them, and as much here until they are sent.
_MAX_SPEECH_CUTTERS = 1


class Port(Protocol):
    """Another port that serves this gateway. `start` and `stop` may be called twice."""

    async def start(self) -> None: ...
    async def stop(self, grace_s: float) -> None: ...


class Gateway:
    """All objects that live as long as the server. Call `open` and `close` on the server's event loop."""

    pool: Pool[FrontendConnection]
    models: ServedModels
    router: FrontendRouter
    frontend: FrontendClient
    engine_loads: EngineLoads
    #: Of `triptych serve`; None behind other gateways.
    model_manager: ModelManagerClient | None
    #: Done when requests in flight must end.
    stopping: asyncio.Future[None]
    #: The gRPC port; None where only the ASGI application is served.
    grpc_server: Port | None = None

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = Metrics(settings.max_metric_tenants)
        self.access = AccessControl(settings, self.metrics)
        self.start_time = int(time.time())
        endpoint, ratio = settings.otlp_traces_endpoint, settings.trace_sampling_ratio
        self.tracer = Tracer.to_collector("gateway", secrets.token_hex(8), endpoint, ratio)
        self.metrics.dropped_spans = self.tracer.dropped_spans
        # Without keys nobody tells callers apart: an address is a proxy's as often as a client's.
        largest = int(settings.max_body_bytes * MEMORY_FACTOR)
        self.bodies = BodyBudget(settings.max_live_body_bytes, settings.body_wait_s, largest, self.access.shares)
        self.tls = Tls.of(settings.tls_dir, Role.GATEWAY)
        if (tls := self.tls) is not None:
            self.metrics.add_certificate("certificate", lambda: tls.watched.current.expiry_s)
        self.store = open_store(settings.response_store, settings.response_ttl_s, settings.response_store_max_bytes)
        directory = settings.files_dir
        #: None: files are not kept here.
        self.files: FileStores | None = None
        if directory is not None:
            sizes = settings.max_file_bytes, settings.files_max_bytes
            self.files = FileStores(directory, *sizes, lambda: self.access.num_tenants)
        #: Called before the requests in flight are ended, while the store is open.
        self.before_close: list[Callable[[], Awaitable[None]]] = []
        #: The right to have a PDF file read, by a process.
        self.pdf_readers = self.access.shares(_MAX_PDF_READERS)
        #: The right to have speech cut, by a process.
        self.speech_cutters = self.access.shares(_MAX_SPEECH_CUTTERS)
        #: The right to join the parts of an upload, in a thread that other requests need, too.
        self.joins = self.access.shares(_MAX_JOINS)
        self.metrics.bodies_waiting.set_function(lambda: self.bodies.num_waiting)

    async def open(self) -> None:
        """Start connecting to the frontends. Does not wait for them."""
        self.stopping = asyncio.get_running_loop().create_future()
        addresses = resolver_of(self.settings.frontend_addresses, "frontend")
        self.pool = Pool("frontend", addresses, lambda address: FrontendConnection(address, self.tls), tls=self.tls)
        waiting = self.access.shares(MAX_WAITING_BYTES)
        socket = self.settings.model_manager
        self.model_manager = manager = ModelManagerClient(socket) if socket is not None else None
        wake = manager.wake if manager is not None else None
        self.models = models = ServedModels(self.pool, self.settings.expected_models, self.settings.model_wait_s, waiting, wake)
        self.metrics.served_models, self.metrics.waiting_for_model = lambda: models.names, models.num_waiting
        self.router = FrontendRouter(self.pool, models)
        self.frontend = FrontendClient(self.pool, self.router, models)
        self.engine_loads = EngineLoads(self.pool, self.frontend)
        self.metrics.frontend_ready.set_function(lambda: bool(self.pool.ready))
        self._running = [asyncio.create_task(self.pool.run(), name="frontends")]
        if self.tls is not None:
            self._running.append(asyncio.create_task(self.tls.watch(), name="certificates"))
        await self.access.open()
        if self.grpc_server is not None:
            await self.grpc_server.start()

    def stop_requests(self) -> None:
        """End each request in flight with an error."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """End the requests in flight, and close the store and the connections to the frontends."""
        if self.grpc_server is not None:
            await self.grpc_server.stop(0.0)
        for hook in self.before_close:
            await hook()
        self.stop_requests()
        await self.store.close()
        if self.files is not None:
            await self.files.close()
        await self.router.close()
        if self.model_manager is not None:
            await self.model_manager.close()
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self.access.close()
        await self.tracer.close()

    async def until_disconnect(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of a request. Cancel it if the client disconnects or the gateway stops."""
        return await until_disconnect(work, request.receive, self.stopping)

    @property
    def served_models(self) -> list[str]:
        """Names of the models that the connected frontends serve, without adapters."""
        return [model.name for frontend in self.pool.connections for model in frontend.models if not model.parent]

    def meter(self, request: Request) -> GenerationMeter:
        """The meter for the generation of this request."""
        return GenerationMeter(self.metrics, request.state.record, request.scope["path"])


def gateway_of(request: HTTPConnection) -> Gateway:
    """The gateway that answers this request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def grant_of(request: HTTPConnection) -> Grant:
    """What this request may do."""
    grant: Grant = request.state.grant
    return grant


def call_context_of(tenant: str) -> common_pb2.CallContext:
    """What frontends are told about a call: the tenant, and the place in the trace that the current task works for."""
    return call_context(tenant, trace_var.get())


def stores_of(request: HTTPConnection) -> FileStores:
    """The stores of files and batches. Raises NotFoundError if this gateway keeps none."""
    stores = gateway_of(request).files
    if stores is None:
        raise NotFoundError("this gateway keeps no files, because its operator has set no directory for them (files_dir)")
    return stores


def request_id_of(request: Request) -> str:
    """The id of this request."""
    return str(request.state.record.request_id)
