"""The ASGI application."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from triptych.errors import TriptychError
from triptych_common import __version__
from triptych_common.rpc.interceptors import REQUEST_ID_KEY

from triptych_gateway.access.grant import RATE_HEADERS
from triptych_gateway.access.middleware import AccessMiddleware, HostCheck, RequestMiddleware
from triptych_gateway.access.routes import Access, AccessPaths, AccessRouter, ErrorBodies
from triptych_gateway.apis import models, tokens
from triptych_gateway.apis.audio import routes as audio
from triptych_gateway.apis.batches import routes as batches
from triptych_gateway.apis.batches.runner import BatchRunner
from triptych_gateway.apis.chat import routes as chat
from triptych_gateway.apis.completions import routes as completions
from triptych_gateway.apis.files import routes as files
from triptych_gateway.apis.files import uploads
from triptych_gateway.apis.messages import routes as messages
from triptych_gateway.apis.ollama import models as ollama_models
from triptych_gateway.apis.ollama import routes as ollama
from triptych_gateway.apis.operations import docs, health, load, playground
from triptych_gateway.apis.operations import models as managed_models
from triptych_gateway.apis.pooling import routes as pooling
from triptych_gateway.apis.responses import routes as responses
from triptych_gateway.apis.responses.service import Responses
from triptych_gateway.settings import GatewaySettings
from triptych_gateway.state import Gateway
from triptych_gateway.wire.errors import handle_error

#: The application serves only the routes of these routers, the last one only if `playground` is set.
ROUTERS = (
    chat.router,
    completions.router,
    responses.router,
    messages.router,
    ollama.router,
    ollama_models.router,
    ollama_models.open_router,
    audio.router,
    files.router,
    uploads.router,
    uploads.parts_router,
    batches.router,
    models.router,
    tokens.router,
    pooling.router,
    health.router,
    health.metrics_router,
    load.router,
    managed_models.router,
    docs.router,
    playground.router,
)
_DESCRIPTION = """OpenAI-compatible REST in front of Triptych's gRPC services.

A field that is not honoured is refused with a 400 that names it; nothing is silently dropped."""


def create_app(settings: GatewaySettings) -> FastAPI:
    """Build the application. Its lifespan opens the connections to the frontends. Its routes share `app.state.gateway`."""
    gateway = Gateway(settings)
    runner: BatchRunner | None = None
    routers: Sequence[AccessRouter] = ROUTERS if settings.playground else ROUTERS[:-1]
    if settings.has_keys and settings.load_metrics_without_key:
        routers = [health.open_metrics_router if router is health.metrics_router else router for router in routers]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await gateway.open()
        if runner is not None:
            runner.start()
        try:
            yield
        finally:
            await gateway.close()

    app = FastAPI(
        title="Triptych",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        middleware=_middleware(gateway, routers),
        exception_handlers=dict.fromkeys((TriptychError, RequestValidationError, HTTPException), handle_error),
        # The middleware makes the spans. FastAPI's own would hold query strings and the texts of exceptions.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.gateway = gateway
    if gateway.files is not None:
        app.state.batches = runner = BatchRunner(gateway, gateway.files, app)
        gateway.before_close.append(runner.close)
    app.state.responses = Responses(gateway)
    app.state.error_bodies = ErrorBodies(routers)
    for router in routers:
        # Not `include_router`, which makes all routes again: that takes a tenth of a second.
        app.router.routes.extend(router.routes)
    if settings.has_keys:
        _declare_key(app, routers)
    docs.mount_assets(app)
    if settings.playground:
        playground.mount_assets(app)
    return app


def _declare_key(app: FastAPI, routers: Sequence[AccessRouter]) -> None:
    """Say in the OpenAPI document which routes need a key, so that /docs can send it. The middleware checks it."""
    routes = [route for router in routers if router.access is not Access.OPEN for route in router.routes]
    closed = {getattr(route, "path_format", "") for route in routes}
    make = app.openapi

    @functools.cache
    def openapi() -> dict[str, Any]:
        document = make()
        document["components"]["securitySchemes"] = {"HTTPBearer": {"type": "http", "scheme": "bearer"}}
        for path in closed & document["paths"].keys():
            for operation in document["paths"][path].values():
                operation["security"] = [{"HTTPBearer": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _middleware(gateway: Gateway, routers: Sequence[AccessRouter]) -> list[Middleware]:
    """The middleware, outermost first."""
    settings = gateway.settings
    origins, origin_pattern = settings.allowed_origins
    # FastAPI adds this route itself. /docs reads it.
    paths = AccessPaths(routers, ["/openapi.json"])
    # A foreign site has no key.
    hosts = HostCheck(settings.allowed_hosts) if settings.allowed_hosts or not settings.has_keys else None
    return [
        Middleware(
            RequestMiddleware,
            metrics=gateway.metrics,
            tracer=gateway.tracer,
            access=gateway.access,
            paths=paths,
            access_log=settings.access_log,
        ),
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_origin_regex=origin_pattern,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_KEY, "request-id", "retry-after", *RATE_HEADERS],
        ),
        Middleware(AccessMiddleware, access=gateway.access, paths=paths, hosts=hosts),
    ]
