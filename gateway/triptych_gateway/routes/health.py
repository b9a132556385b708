"""What operators and orchestrators ask: /health, /live, /ready, /version, /metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from triptych_common import __version__
from triptych_common.errors import ServiceUnavailableError

from triptych_gateway.access.routes import Access, AccessRouter
from triptych_gateway.errors import openapi_responses
from triptych_gateway.state import gateway_of

router = AccessRouter(access=Access.OPEN, tags=["Operations"])


class FrontendView(BaseModel):
    """A frontend, as the gateway sees it."""

    address: str
    ready: bool
    reason: str


class HealthResponse(BaseModel):
    """The gateway lives."""

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
    """200 while the gateway lives, whatever it sees of the frontends."""
    frontends = gateway_of(request).pool.connections
    return HealthResponse(
        frontends=[FrontendView(address=one.address, ready=one.is_ready, reason=one.why_away) for one in frontends]
    )


@router.get("/live")
async def live() -> StatusResponse:
    """200 while the event loop turns: no lost neighbour is a reason to restart the gateway."""
    return StatusResponse()


@router.get("/ready", responses=openapi_responses())
async def ready(request: Request) -> StatusResponse:
    """200 while requests can be answered, 503 otherwise."""
    pool = gateway_of(request).pool
    if not pool.ready:
        raise ServiceUnavailableError(f"not ready: {pool.none_left().message}")
    return StatusResponse()


@router.get("/version")
async def version() -> VersionResponse:
    """Which Triptych this is."""
    return VersionResponse(version=__version__)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(request: Request) -> Response:
    """For Prometheus."""
    return Response(generate_latest(gateway_of(request).metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
