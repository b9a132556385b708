"""Middleware for every request: id, trace, access log, metrics, authentication, errors. Pure ASGI, no work per streamed token."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from triptych_common.rpc.interceptors import REQUEST_ID_KEY, usable_request_id
from triptych_common.telemetry import attributes as names
from triptych_common.telemetry.logs import request_id_var
from triptych_common.telemetry.span import Span
from triptych_common.telemetry.trace_context import TRACEPARENT, TRACESTATE, TraceContext, parse_trace_context, trace_var
from triptych_common.telemetry.tracing import Tracer

from triptych_gateway.access.control import AccessControl, audited
from triptych_gateway.access.key_ring import NO_KEY
from triptych_gateway.access.routes import Access, AccessPaths
from triptych_gateway.connections.http_protocol import MAX_HEADER_BYTES, TOO_LARGE
from triptych_gateway.metrics import Metrics
from triptych_gateway.record import RequestRecord
from triptych_gateway.redaction import excerpt
from triptych_gateway.wire.errors import CLIENT_CLOSED_REQUEST, ClientDisconnectedError, error_response

log = logging.getLogger(__name__)
_SERVED = frozenset({"http", "websocket"})
#: Paths that are polled every few seconds. Their requests are logged at DEBUG.
_PROBES = frozenset({"/health", "/live", "/ready", "/metrics", "/load", "/admin/models"})
#: Domains that nobody can register: of this machine, of local networks, and of Kubernetes' services.
_LOCAL = ("localhost", "local", "internal", "home.arpa", "lan", "svc", "test")


class RequestMiddleware:
    """The outermost middleware. Sets the request id, and writes span, metrics and logs when the request ends."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, tracer: Tracer, access: AccessControl, paths: AccessPaths, access_log: bool
    ) -> None:
        self._app, self._metrics, self._tracer = app, metrics, tracer
        self._access, self._paths, self._access_log = access, paths, access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in _SERVED:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestRecord(usable_request_id(headers.get(REQUEST_ID_KEY)))
        scope.setdefault("state", {}).update(record=record, send_body=send)
        # Anthropic's clients read the second name.
        id_headers = [(name, record.request_id.encode()) for name in (REQUEST_ID_KEY.encode(), b"request-id")]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "websocket.accept":
                record.status = 101
            if message["type"].endswith("http.response.start"):
                record.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *id_headers, *record.rate_headers.items()]
            await send(message)

        token = request_id_var.set(record.request_id)
        self._metrics.in_flight.inc()
        with self._traced(scope, record, _trace_of(headers)):
            try:
                await self._app(scope, receive, send_with_id)
            except ClientDisconnectedError:
                record.is_aborted = True
                record.status = record.status or CLIENT_CLOSED_REQUEST
            finally:
                self._metrics.in_flight.dec()
                route = _route(scope)
                # A connection is not a request of its route.
                self._metrics.request_ended(record, "websocket" if scope["type"] == "websocket" else route or "unmatched")
                if self._paths.of(scope["path"], headers) is not Access.OPEN and scope.get("method") != "OPTIONS":
                    self._access.ended("request", record, *audited(scope, route))
                self._log(scope, record)
                request_id_var.reset(token)

    @contextmanager
    def _traced(self, scope: Scope, record: RequestRecord, parent: TraceContext | None) -> Iterator[None]:
        """Trace the request. A probe is not traced. A WebSocket lives for an hour, and each of its turns has a span."""
        if scope["type"] == "websocket" or scope["path"] in _PROBES:
            token = trace_var.set(parent)
            try:
                yield
            finally:
                trace_var.reset(token)
            return
        with self._tracer.request(scope["method"], parent) as span:
            try:
                yield
            finally:
                if span is not None:
                    _describe(span, scope, record)

    def _log(self, scope: Scope, record: RequestRecord) -> None:
        if not self._access_log:
            return
        path = excerpt(scope["path"])
        # A path can contain line breaks.
        what = f"{scope.get('method', 'WEBSOCKET')} {path if path.isprintable() else repr(path)}"
        log.log(logging.DEBUG if scope["path"] in _PROBES else logging.INFO, "%s", record.line(what))


def _trace_of(headers: Headers) -> TraceContext | None:
    """The client's place in its trace. None if it sent no valid one, or several."""
    given = headers.getlist(TRACEPARENT)
    return parse_trace_context(given[0], ",".join(headers.getlist(TRACESTATE))) if len(given) == 1 else None


def _describe(span: Span, scope: Scope, record: RequestRecord) -> None:
    """Note what HTTP says of a request that has ended."""
    if route := _route(scope):
        span.name += f" {route}"
        span.attributes[names.HTTP_ROUTE] = route
    span.attributes |= {
        names.HTTP_REQUEST_METHOD: scope["method"],
        names.URL_PATH: excerpt(scope["path"]),
        names.URL_SCHEME: scope.get("scheme", "http"),
    }
    if record.status:
        span.attributes[names.HTTP_RESPONSE_STATUS_CODE] = record.status
    if record.is_aborted:
        span.attributes[names.CANCELLED] = True


def _route(scope: Scope) -> str:
    """The path template of the route, so that metrics have one label value per route. Empty if there is none."""
    return getattr(scope.get("route"), "path", None) or ""


class HostCheck:
    """Refuses hosts that may be a foreign site's, as a defence against DNS rebinding.

    A page of a foreign site can reach a gateway in the network of its reader, when the site's name begins to resolve to the
    gateway's address. The browser then sends the site's name as the host. It cannot send an address, nor a name that no site can
    have.

    Args:
        allowed: names that are taken too; `*.example.com` is all names below one, and `*` every name.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = tuple(name.lower().rstrip(".") for name in allowed)

    def check(self, hosts: Sequence[str]) -> None:
        """Raise HTTPException unless the values of the Host header are accepted. HTTP/1.0 has none; browsers always send one."""
        for host in hosts:
            if not self._accepts(_name(host)):
                message = (
                    f"the host {host[:100]!r} may be a foreign site's (DNS rebinding), and is not served; set allowed_hosts to the "
                    "names by which this gateway is reached"
                )
                raise HTTPException(403, message)

    def _accepts(self, name: str) -> bool:
        if "." not in name or _is_address(name) or any(name.endswith(f".{domain}") for domain in _LOCAL):
            return True
        labels = name.split(".")
        parents = {"*." + ".".join(labels[number:]) for number in range(1, len(labels))}
        return "*" in self._allowed or name in self._allowed or not parents.isdisjoint(self._allowed)


def _name(host: str) -> str:
    """The host without its port, in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).lower().rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class AccessMiddleware:
    """Authenticates the caller before the body is read, and stores a Principal and a Grant in the scope's state.

    Refuses requests without an accepted key, beyond the key's rate, and with too large headers. Turns any exception into an error
    response, if the response has not started yet.

    Args:
        paths: which paths need a key.
        hosts: refuses foreign hosts; None to take all.
    """

    def __init__(self, app: ASGIApp, access: AccessControl, paths: AccessPaths, hosts: HostCheck | None) -> None:
        self._app, self._access, self._paths, self._hosts = app, access, paths, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in _SERVED:
            await self._app(scope, receive, send)
            return
        is_started = False

        async def send_noting_start(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._respond(scope, receive, send_noting_start)
        except ClientDisconnectedError:
            raise
        except Exception as error:
            if is_started:
                raise
            await error_response(error, scope)(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope["headers"]) > MAX_HEADER_BYTES:
            raise HTTPException(431, TOO_LARGE)
        if self._hosts is not None:
            self._hosts.check(Headers(scope=scope).getlist("host"))
        state, record = scope["state"], scope["state"]["record"]
        state.update(principal=NO_KEY.principal, grant=self._access.grant(NO_KEY, record))
        headers = Headers(scope=scope)
        needed = self._paths.of(scope["path"], headers)
        if needed is Access.OPEN or scope.get("method") == "OPTIONS":
            await self._app(scope, receive, send)
            return
        # A request that the gateway itself makes has no header with a key. No client can set the scope's state.
        if (own := state.get("own_key")) is not None:
            grant = self._access.admit_own(own, record)
        else:
            grant = await self._access.admit(headers, record, for_operators=needed is Access.OPERATOR)
        try:
            await grant.begin()
            state.update(principal=grant.key.principal, grant=grant)
            if scope["type"] == "websocket":
                # Each of its turns has a grant of its own.
                grant.end()
                with self._access.websocket(grant.key):
                    await self._app(scope, receive, send)
            else:
                await self._app(scope, receive, send)
        except ClientDisconnectedError:
            record.is_aborted = True
            raise
        finally:
            grant.end()
