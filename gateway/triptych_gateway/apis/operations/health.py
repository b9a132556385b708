"""Routes for operators and orchestrators: /health, /live, /ready, /version, /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Self

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, Metric, generate_latest
from prometheus_client.registry import Collector
from pydantic import BaseModel
from triptych.errors import ServiceUnavailableError
from triptych_common import __version__

from triptych_gateway.access.keys import given_keys
from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.frontends.connection import FrontendConnection
from triptych_gateway.frontends.loads import ModelLoads
from triptych_gateway.metrics import load_metrics
from triptych_gateway.state import gateway_of
from triptych_gateway.wire.errors import openapi_responses

router = AccessRouter(access=Access.OPEN, tags=["Operations"])
metrics_router = AccessRouter(access=Access.OPERATOR, tags=["Operations"])
#: In the place of `metrics_router` with `load_metrics_without_key`.
open_metrics_router = AccessRouter(access=Access.OPEN_OR_OPERATOR, tags=["Operations"])
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


class FrontendView(BaseModel):
    """The state of a frontend. The route is open, so addresses and reasons are only in the gateway's log."""

    ready: bool
    state: Literal["ready", "not ready", "draining", "away"]

    @classmethod
    def of(cls, frontend: FrontendConnection) -> Self:
        """The view of a connection."""
        if frontend.is_ready:
            return cls(ready=True, state="ready")
        if not frontend.is_connected:
            return cls(ready=False, state="away")
        return cls(ready=False, state="draining" if frontend.is_going_away else "not ready")


class HealthResponse(BaseModel):
    """The gateway is alive; the state of its frontends."""

    status: Literal["ok"] = "ok"
    frontends: list[FrontendView]


class StatusResponse(BaseModel):
    """One word."""

    status: Literal["ok"] = "ok"


class VersionResponse(BaseModel):
    """Version of Triptych."""

    version: str


@router.get("/health")
async def health(request: Request) -> HealthResponse:
    """200 while the gateway is alive, whatever the state of the frontends."""
    return HealthResponse(frontends=[FrontendView.of(frontend) for frontend in gateway_of(request).pool.connections])


@router.get("/live")
async def live() -> StatusResponse:
    """200 while the event loop runs. A lost frontend is no reason to restart the gateway."""
    return StatusResponse()


@router.get("/ready", responses=openapi_responses())
async def ready(request: Request) -> StatusResponse:
    """200 while at least one frontend is ready, 503 otherwise."""
    if not gateway_of(request).pool.ready:
        raise ServiceUnavailableError("not ready: no frontend takes requests; the gateway's log and /health say more")
    return StatusResponse()


@router.get("/version")
async def version() -> VersionResponse:
    """The version of Triptych."""
    return VersionResponse(version=__version__)


@metrics_router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics(request: Request) -> Response:
    """The metrics in Prometheus format."""
    gateway = gateway_of(request)
    gateway.metrics.engine_loads = await gateway.engine_loads.read()
    return _rendered(gateway.metrics.registry)


@open_metrics_router.get("/metrics", response_class=Response, responses=_TEXT)
async def metrics_or_load(request: Request) -> Response:
    """The metrics in Prometheus format. Without a key, those of the engines' load alone."""
    if given_keys(request.headers):
        return await metrics(request)
    return _rendered(_Load(await gateway_of(request).engine_loads.read()))


class _Load(Collector):
    """What an endpoint picker reads."""

    def __init__(self, loads: ModelLoads) -> None:
        self._loads = loads

    def collect(self) -> Iterable[Metric]:
        return load_metrics(self._loads)


def _rendered(collector: Collector) -> Response:
    return Response(generate_latest(collector), headers={"content-type": CONTENT_TYPE_LATEST})
