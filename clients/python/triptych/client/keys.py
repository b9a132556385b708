"""Interceptors that send a key with each call of a channel. The clients need none: they send the key themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc


class _Key:
    """Adds the key to the metadata of a call, of either kind of channel."""

    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    def _intercept(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """The call itself, or what `grpc.aio` awaits for it. What these details lack, gRPC takes from the call."""
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self._entry)
        changed = grpc.aio.ClientCallDetails(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)
        return continuation(changed, request)


class KeyInterceptor(
    _Key,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """For all kinds of calls."""

    intercept_unary_unary = _Key._intercept  # type: ignore[assignment]
    intercept_unary_stream = _Key._intercept  # type: ignore[assignment]
    intercept_stream_unary = _Key._intercept  # type: ignore[assignment]
    intercept_stream_stream = _Key._intercept  # type: ignore[assignment]


class _UnaryUnary(_Key, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _Key._intercept  # type: ignore[assignment]


class _UnaryStream(_Key, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _Key._intercept  # type: ignore[assignment]


class _StreamUnary(_Key, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _Key._intercept  # type: ignore[assignment]


class _StreamStream(_Key, grpc.aio.StreamStreamClientInterceptor):
    intercept_stream_stream = _Key._intercept  # type: ignore[assignment]


def aio_interceptors(api_key: str) -> list[grpc.aio.ClientInterceptor]:
    """One for each kind of call: `grpc.aio` takes an interceptor of several kinds for the first of them."""
    return [_UnaryUnary(api_key), _UnaryStream(api_key), _StreamUnary(api_key), _StreamStream(api_key)]
