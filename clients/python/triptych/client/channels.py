"""gRPC channels with the options that the services need."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from triptych.client.config import KeepAliveConfig, RetryConfig, TLSConfig

#: Largest message in either direction, in bytes.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024


def connect(
    address: str,
    *,
    api_key: str | None = None,
    tls: TLSConfig | None = None,
    retry: RetryConfig | None = None,
    keepalive: KeepAliveConfig | None = None,
) -> grpc.Channel:
    """A channel for the stubs of `triptych.v1`, for those who call one stage alone.

    It connects at its first use, and again after each loss. Close it, or use it in a `with`.

    Args:
        address: `host:port`, or another target of gRPC (`dns:///...`, `unix:...`).
        api_key: sent with each call, as `authorization: Bearer ...`.
        tls: None: no TLS.
        retry: None: the defaults of `RetryConfig`.
        keepalive: None: the defaults of `KeepAliveConfig`.

    Raises:
        OSError: a file of `tls` cannot be read.
    """
    channel = open_channel(address, tls, retry, keepalive)
    if api_key is None:
        return channel
    from triptych.client.keys import KeyInterceptor

    return grpc.intercept_channel(channel, KeyInterceptor(api_key))


def aconnect(
    address: str,
    *,
    api_key: str | None = None,
    tls: TLSConfig | None = None,
    retry: RetryConfig | None = None,
    keepalive: KeepAliveConfig | None = None,
) -> grpc.aio.Channel:
    """A channel of `grpc.aio`, for the running event loop. Otherwise as `connect`."""
    if api_key is None:
        return open_aio_channel(address, tls, retry, keepalive)
    from triptych.client.keys import aio_interceptors

    return open_aio_channel(address, tls, retry, keepalive, aio_interceptors(api_key))


def open_channel(address: str, tls: TLSConfig | None, retry: RetryConfig | None, keepalive: KeepAliveConfig | None) -> grpc.Channel:
    options = channel_options(address, tls, retry, keepalive)
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    return grpc.secure_channel(address, _credentials(tls), options=options)


def open_aio_channel(
    address: str,
    tls: TLSConfig | None,
    retry: RetryConfig | None,
    keepalive: KeepAliveConfig | None,
    interceptors: Sequence[grpc.aio.ClientInterceptor] = (),
) -> grpc.aio.Channel:
    options = channel_options(address, tls, retry, keepalive)
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options, interceptors=interceptors)
    return grpc.aio.secure_channel(address, _credentials(tls), options=options, interceptors=interceptors)


def channel_options(
    address: str, tls: TLSConfig | None, retry: RetryConfig | None, keepalive: KeepAliveConfig | None
) -> list[tuple[str, Any]]:
    """The channel arguments of gRPC."""
    retry, keepalive = retry or RetryConfig(), keepalive or KeepAliveConfig()
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", round(keepalive.time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", int(keepalive.permit_without_calls)),
        ("grpc.http2.max_pings_without_data", 0),
        # Reconnect to a server that was started again within a second or two.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.min_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
        ("grpc.enable_retries", int(retry.max_attempts > 1)),
        ("grpc.service_config", _service_config(retry)),
        # gRPC keeps a request for its retries only if it fits in here. By default pictures do not.
        ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),
    ]
    if address.startswith(("127.", "localhost:", "[::1]:")):
        options.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _service_config(retry: RetryConfig) -> str:
    method: dict[str, Any] = {"name": [{}]}
    if retry.max_attempts > 1:
        method["retryPolicy"] = {
            "maxAttempts": retry.max_attempts,
            "initialBackoff": f"{retry.initial_backoff_s:.9f}s",
            "maxBackoff": f"{retry.max_backoff_s:.9f}s",
            "backoffMultiplier": retry.backoff_multiplier,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
    return json.dumps({"methodConfig": [method]})


def _credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    root, key, chain = (
        None if path is None else Path(path).read_bytes() for path in (tls.root_certificates, tls.private_key, tls.certificate)
    )
    return grpc.ssl_channel_credentials(root, key, chain)
