"""Keys: the mock refuses calls without the right one, as a server that asks for keys does."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from triptych.errors import UnauthenticatedError
from triptych_common.rpc.interceptors import wrapped

_PREFIX = "Bearer "


class KeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of Triptych's services whose metadata has no `authorization: Bearer KEY`."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith("/triptych.v1.") or self._knows(handler_call_details):
            return handler
        return wrapped(handler, lambda _: _refuse_stream if handler.response_streaming else _refuse)

    def _knows(self, details: grpc.HandlerCallDetails) -> bool:
        given = str(dict(details.invocation_metadata or ()).get("authorization", ""))
        return given.startswith(_PREFIX) and hmac.compare_digest(given.removeprefix(_PREFIX).encode(), self._key)


async def _refuse(request: Any, context: grpc.aio.ServicerContext) -> Any:
    raise UnauthenticatedError("the call has no key, or a wrong one: authorization: Bearer KEY", field="authorization")


async def _refuse_stream(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
    await _refuse(request, context)
    yield
