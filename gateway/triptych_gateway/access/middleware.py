"""Middleware for every request: id, access log, metrics, authentication, errors. Pure ASGI, with no work per streamed token."""

from __future__ import annotations

import hmac
import logging
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, usable_request_id
from triptych_common.rpc.principal import ANONYMOUS
from triptych_common.telemetry.logs import request_id_var

from triptych_gateway.access.routes import OpenPaths
from triptych_gateway.errors import CLIENT_CLOSED_REQUEST, ClientDisconnectedError, error_response
from triptych_gateway.metrics import Metrics, RequestRecord

log = logging.getLogger(__name__)
_SERVED = frozenset({"http", "websocket"})
#: Paths that are polled every few seconds. Their requests are logged at DEBUG.
_PROBES = frozenset({"/health", "/live", "/ready", "/metrics", "/load"})


class RequestMiddleware:
    """The outermost middleware. Sets the request id, and writes metrics and access log when the request ends."""

    def __init__(self, app: ASGIApp, metrics: Metrics, access_log: bool) -> None:
        self._app = app
        self._metrics = metrics
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in _SERVED:
            await self._app(scope, receive, send)
            return
        record = RequestRecord(usable_request_id(Headers(scope=scope).get(REQUEST_ID_KEY)))
        scope.setdefault("state", {}).update(record=record, send_body=send)
        # Anthropic's clients read the second name.
        id_headers = [(name, record.request_id.encode()) for name in (REQUEST_ID_KEY.encode(), b"request-id")]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "websocket.accept":
                record.status = 101
            if message["type"].endswith("http.response.start"):
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *id_headers]
            await send(message)

        token = request_id_var.set(record.request_id)
        self._metrics.in_flight.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnectedError:
            record.is_aborted = True
            record.status = record.status or CLIENT_CLOSED_REQUEST
        finally:
            self._metrics.in_flight.dec()
            self._metrics.request_ended(record, _route(scope))
            self._log(scope, record)
            request_id_var.reset(token)

    def _log(self, scope: Scope, record: RequestRecord) -> None:
        if not self._access_log:
            return
        tokens = f" {record.usage.completion_tokens} tokens" if record.usage else ""
        end = " aborted by the client" if record.is_aborted else f" {record.stream_error}" if record.stream_error else ""
        log.log(
            logging.DEBUG if scope["path"] in _PROBES else logging.INFO,
            "%s %s %d %.1f ms%s%s",
            scope.get("method", "WEBSOCKET"),
            # A path can contain line breaks.
            scope["path"] if scope["path"].isprintable() else repr(scope["path"]),
            record.status,
            (time.perf_counter() - record.start_s) * 1e3,
            tokens,
            end,
        )


def _route(scope: Scope) -> str:
    """The path template of the route, so that metrics have one label value per route. A connection is not a request of it."""
    if scope["type"] == "websocket":
        return "websocket"
    return getattr(scope.get("route"), "path", None) or "unmatched"


class ErrorMiddleware:
    """Turns an exception into an error response, if the response has not started yet."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_started = False

        async def send_noting_start(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting_start)
        except ClientDisconnectedError:
            raise
        except Exception as error:
            if is_started or scope["type"] not in _SERVED:
                raise
            await error_response(error, scope)(scope, receive, send)


class PrincipalMiddleware:
    """Authenticates the caller before the body is read. Stores a Principal in the scope's state, or refuses the request.

    Args:
        api_key: the key that closed routes require; None allows every caller.
        open_paths: the paths that need no key.
    """

    def __init__(self, app: ASGIApp, api_key: str | None, open_paths: OpenPaths) -> None:
        self._app = app
        self._api_key = None if api_key is None else api_key.encode()
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in _SERVED:
            # All callers with the key are the same anonymous tenant, because there is only one key.
            scope["state"]["principal"] = ANONYMOUS
            if self._api_key is not None and scope["path"] not in self._open_paths and scope.get("method") != "OPTIONS":
                keys = _given_keys(Headers(scope=scope))
                if not any(hmac.compare_digest(key.encode("latin-1"), self._api_key) for key in keys):
                    needed = "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                    raise HTTPException(401, "wrong API key" if keys else needed, {"www-authenticate": "Bearer"})
        await self._app(scope, receive, send)


def _given_keys(headers: Headers) -> list[str]:
    """The keys that a request has: OpenAI's clients send a bearer token, Anthropic's a header of its own, or both."""
    keys = [headers["x-api-key"]] if "x-api-key" in headers else []
    if "authorization" in headers:
        scheme, _, key = headers["authorization"].partition(" ")
        keys.append(key if scheme.lower() == "bearer" else "")
    return keys
