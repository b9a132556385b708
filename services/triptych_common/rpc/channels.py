"""gRPC channels between services, with the options that all of them need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

#: Largest message either way, in bytes. Raw media files travel inline.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_COMMON_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # Without this a second server shares the port in silence and takes half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]

CHANNEL_OPTIONS: list[tuple[str, Any]] = [
    *_COMMON_OPTIONS,
    # Services reach each other directly, whatever http_proxy says about the way out.
    ("grpc.enable_http_proxy", 0),
    # A restarted peer should be found again within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # One that has another address since is looked up again as soon; by default gRPC does so at most every 30 s.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
]


def open_channel(address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
    """A channel to `host:port`. It connects when first used and again after each loss."""
    return grpc.aio.insecure_channel(address, options=[*CHANNEL_OPTIONS, *options])


def is_being_cancelled() -> bool:
    """Whether somebody cancels the task in hand. If not, a CancelledError comes from a call whose channel was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
