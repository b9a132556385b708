"""What the routes of one gateway share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request

from triptych_gateway.frontends.client import FrontendClient, FrontendWatch
from triptych_gateway.lifecycle import until_disconnect
from triptych_gateway.metrics import GenerationMeter, Metrics
from triptych_gateway.settings import GatewaySettings

T = TypeVar("T")


class Gateway:
    """Everything that lives as long as the server. `open` and `close` it on the server's event loop."""

    frontend: FrontendClient
    watch: FrontendWatch
    #: Done when the time for requests in flight is over.
    stopping: asyncio.Future[None]

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.start_time = int(time.time())
        #: Of request bodies that are being read or worked on.
        self.live_body_bytes = 0

    async def open(self) -> None:
        """Connect to the frontend, as soon as it is there."""
        self.stopping = asyncio.get_running_loop().create_future()
        self.frontend = FrontendClient(self.settings.frontend_address)
        self.watch = FrontendWatch(self.frontend)
        self.metrics.frontend_ready.set_function(lambda: self.watch.is_ready)
        self.watch.start()

    def stop_requests(self) -> None:
        """End the requests in flight, each with an error."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    async def close(self) -> None:
        """Let go of the frontend."""
        self.stop_requests()
        await self.watch.stop()
        await self.frontend.close()

    async def until_disconnect(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Run the work of a request for as long as its client waits."""
        return await until_disconnect(work, request.receive, self.stopping)

    def meter(self, request: Request) -> GenerationMeter:
        """Measures the generation of this request."""
        return GenerationMeter(self.metrics, request.state.record, request.scope["path"])


def gateway_of(request: Request) -> Gateway:
    """The gateway that answers this request."""
    gateway: Gateway = request.app.state.gateway
    return gateway


def request_id_of(request: Request) -> str:
    """The id of this request."""
    return str(request.state.record.request_id)
