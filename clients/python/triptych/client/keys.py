"""Interceptors that send a key with each call of a channel. The clients need none: they send the key themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import grpc


class _Details(NamedTuple):
    """What an interceptor changes of a call: its metadata."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: grpc.CallCredentials | None
    wait_for_ready: bool | None
    compression: Any


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds the key to the metadata of all kinds of calls."""

    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    def _intercept(self, continuation: Callable[..., Any], details: grpc.ClientCallDetails, request: Any) -> Any:
        metadata = (*(details.metadata or ()), self._entry)
        changed = _Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready, details.compression
        )
        return continuation(changed, request)

    intercept_unary_unary = _intercept  # type: ignore[assignment]
    intercept_unary_stream = _intercept  # type: ignore[assignment]
    intercept_stream_unary = _intercept  # type: ignore[assignment]
    intercept_stream_stream = _intercept  # type: ignore[assignment]


class _AioKey:
    def __init__(self, api_key: str) -> None:
        self._value = f"Bearer {api_key}"

    async def _intercept(self, continuation: Callable[..., Any], details: grpc.aio.ClientCallDetails, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), ("authorization", self._value))
        changed = grpc.aio.ClientCallDetails(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)
        return await continuation(changed, request)


class _UnaryUnary(_AioKey, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _AioKey._intercept  # type: ignore[assignment]


class _UnaryStream(_AioKey, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _AioKey._intercept  # type: ignore[assignment]


class _StreamUnary(_AioKey, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _AioKey._intercept  # type: ignore[assignment]


class _StreamStream(_AioKey, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream = _AioKey._intercept  # type: ignore[assignment]


def aio_interceptors(api_key: str) -> list[grpc.aio.ClientInterceptor]:
    """One for each kind of call: `grpc.aio` takes an interceptor of several kinds for the first of them."""
    return [_UnaryUnary(api_key), _UnaryStream(api_key), _StreamUnary(api_key), _StreamStream(api_key)]
