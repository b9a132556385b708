"""The state that the routes of one gateway share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import HTTPConnection, Request
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolver import resolver_of

from triptych_gateway.answers.lifecycle import until_disconnect
from triptych_gateway.answers.responses.background import LEASE_S, Background
from triptych_gateway.answers.responses.keeper import Keeper
from triptych_gateway.body_budget import BodyBudget
from triptych_gateway.frontends.client import FrontendClient
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.router import FrontendRouter
from triptych_gateway.metrics import GenerationMeter, Metrics
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.stores.opening import open_store

T = TypeVar("T")


class Gateway:
    """All objects that live as long as the server. Call `open` and `close` on the server's event loop."""

    pool: Pool[FrontendConnection]
    router: FrontendRouter
    frontend: FrontendClient
    #: Done when requests in flight must end.
    stopping: asyncio.Future[None]

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.start_time = int(time.time())
        self.bodies = BodyBudget(settings.max_live_body_bytes, settings.body_wait_s)
        self.store = open_store(settings.response_store, settings.response_ttl_s, settings.response_store_max_bytes)
        self.keeper = Keeper(self.store, settings.max_stored_response_bytes, settings.max_body_bytes)
        self.background = Background(self.keeper, settings.max_background_responses, LEASE_S)
        self.metrics.background_responses.set_function(lambda: len(self.background.runs))
        self.metrics.bodies_waiting.set_function(lambda: self.bodies.num_waiting)

    async def open(self) -> None:
        """Start connecting to the frontends. Does not wait for them."""
        self.stopping = asyncio.get_running_loop().create_future()
        self.pool = Pool("frontend", resolver_of(self.settings.frontend_addresses), FrontendConnection)
        self.router = FrontendRouter(self.pool)
        self.frontend = FrontendClient(self.pool, self.router)
        self.metrics.frontend_ready.set_function(lambda: bool(self.pool.ready))
        self._running = asyncio.create_task(self.pool.run(), name="frontends")

    def stop_requests(self) -> None:
        """End each request in flight with an error."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """End the requests in flight, and close the store and the connections to the frontends."""
        await self.background.close(self.settings.shutdown_grace_s, self.stopping)
        self.stop_requests()
        await self.store.close()
        await self.router.close()
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def until_disconnect(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of a request. Cancel it if the client disconnects or the gateway stops."""
        return await until_disconnect(work, request.receive, self.stopping)

    def meter(self, request: Request) -> GenerationMeter:
        """The meter for the generation of this request."""
        return GenerationMeter(self.metrics, request.state.record, request.scope["path"])


def gateway_of(request: HTTPConnection) -> Gateway:
    """The gateway that answers this request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def request_id_of(request: Request) -> str:
    """The id of this request."""
    return str(request.state.record.request_id)
