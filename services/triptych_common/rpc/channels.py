"""gRPC channels between services, with common options."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls

#: Largest message in either direction, in bytes. Raw media files are sent inline.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
#: Largest metadata of a call in either direction, in bytes. gRPC refuses calls with more.
MAX_METADATA_BYTES = 16 * 1024
#: Longest wait for an answer of another service, in seconds: one that needs no model, and one that does.
CALL_TIMEOUT_S, WORK_TIMEOUT_S = 60.0, 3600.0

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # Without the second option, gRPC would refuse calls at random between this size and the double.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # Without this, a second server silently shares the port and receives half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # Services connect to each other directly and ignore http_proxy.
    ("grpc.enable_http_proxy", 0),
    # Reconnect to a restarted peer within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name, the time that a connection has for its handshakes.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # A peer with a new address is looked up again in the same time; by default gRPC looks up at most every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
]


def was_closed(error: BaseException) -> bool:
    """Whether a call failed because its channel was closed meanwhile. gRPC then cancels the call as if its caller had done so."""
    return isinstance(error, grpc.aio.UsageError) or (isinstance(error, asyncio.CancelledError) and not is_cancelled())


def is_cancelled() -> bool:
    """Whether somebody has cancelled the current task, even if a library took the cancellation for the end of a call."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def open_channel(
    address: str, options: Sequence[tuple[str, Any]] = (), tls: Tls | None = None, role: Role = Role.FRONTEND
) -> grpc.aio.Channel:
    """A channel to `host:port`. It connects at its first use, and again after each loss.

    Args:
        tls: this process's certificate, as it is now; None for no TLS.
        role: what the service at the address must be, with TLS.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options])
    # Addresses come from resolvers, as IP addresses. Certificates name roles.
    options = [*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", role.dns_name), *options]
    return grpc.aio.secure_channel(address, tls.channel_credentials, options=options)
