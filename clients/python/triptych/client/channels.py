"""gRPC channels with the options that the services need."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from triptych.client.config import KeepAliveConfig, RetryConfig, TLSConfig, addresses_of, key_of
from triptych.errors import InvalidRequestError

#: Largest message in either direction, in bytes.
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
#: Targets that may stand for several addresses.
_SEVERAL = ("dns:", "ipv4:", "ipv6:")


def connect(
    address: str | Sequence[str] | None = None,
    *,
    api_key: str | None = None,
    tls: TLSConfig | None = None,
    retry: RetryConfig | None = None,
    keepalive: KeepAliveConfig | None = None,
) -> grpc.Channel:
    """A channel for the stubs of `triptych.v1`, for those who call one stage alone.

    It connects at its first use, and again after each loss. Close it, or use it in a `with`.

    Args:
        address: `host:port`, or another target of gRPC (`dns:///...`, `unix:...`). Several, and all that a `dns:` name stands for,
            take turns (`round_robin`). None: those of TRIPTYCH_ADDRESS, or 127.0.0.1:50051. The names of several addresses are
            looked up here, once. With TLS, all of them show a certificate for the host of the first.
        api_key: sent with each call, as `authorization: Bearer ...`. None: that of TRIPTYCH_API_KEY, if it is set.
        tls: None: no TLS.
        retry: None: the defaults of `RetryConfig`.
        keepalive: None: the defaults of `KeepAliveConfig`.

    Raises:
        OSError: a file of `tls` cannot be read.
    """
    target, key = target_of(address, tls, retry, keepalive), key_of(api_key)
    return open_channel(target, [_AnyCall(key)] if key else ())


def aconnect(
    address: str | Sequence[str] | None = None,
    *,
    api_key: str | None = None,
    tls: TLSConfig | None = None,
    retry: RetryConfig | None = None,
    keepalive: KeepAliveConfig | None = None,
) -> grpc.aio.Channel:
    """A channel of `grpc.aio`, for the running event loop. Otherwise as `connect`."""
    target, key = target_of(address, tls, retry, keepalive), key_of(api_key)
    # One for each kind of call: `grpc.aio` takes an interceptor of several kinds for the first of them.
    return open_aio_channel(target, [kind(key) for kind in (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)] if key else ())


class Target(NamedTuple):
    """Where a channel goes, and how."""

    name: str
    options: list[tuple[str, Any]]
    #: None: no TLS.
    credentials: grpc.ChannelCredentials | None


def open_channel(target: Target, interceptors: Sequence[Any] = ()) -> grpc.Channel:
    if target.credentials is None:
        channel = grpc.insecure_channel(target.name, options=target.options)
    else:
        channel = grpc.secure_channel(target.name, target.credentials, options=target.options)
    return grpc.intercept_channel(channel, *interceptors) if interceptors else channel


def open_aio_channel(target: Target, interceptors: Sequence[grpc.aio.ClientInterceptor] = ()) -> grpc.aio.Channel:
    if target.credentials is None:
        return grpc.aio.insecure_channel(target.name, options=target.options, interceptors=interceptors)
    return grpc.aio.secure_channel(target.name, target.credentials, options=target.options, interceptors=interceptors)


def target_of(
    address: str | Sequence[str] | None, tls: TLSConfig | None, retry: RetryConfig | None, keepalive: KeepAliveConfig | None
) -> Target:
    """The target of a channel, with its channel arguments. Arguments are those of `connect`.

    Raises:
        InvalidRequestError: one of several addresses is no `host:port`, or names no host.
        OSError: a file of `tls` cannot be read.
    """
    addresses = addresses_of(address)
    retry, keepalive = retry or RetryConfig(), keepalive or KeepAliveConfig()
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", round(keepalive.time_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive.timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", int(keepalive.permit_without_calls)),
        ("grpc.http2.max_pings_without_data", 0),
        # A stream that is not read makes the server wait. gRPC's own estimate lets a fast server send tens of MiB ahead.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 1 << 20),
        # Reconnect to a server that was started again within a second or two.
        ("grpc.initial_reconnect_backoff_ms", 200),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # In spite of its name, the time that a connection has for its handshakes.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.dns_min_time_between_resolutions_ms", 2_000),
        ("grpc.enable_retries", int(retry.max_attempts > 1)),
        ("grpc.service_config", _service_config(retry, is_balanced=len(addresses) > 1 or addresses[0].startswith(_SEVERAL))),
        # gRPC keeps a request for its retries only if it fits in here. By default pictures do not.
        ("grpc.per_rpc_retry_buffer_size", MAX_MESSAGE_BYTES),
    ]
    if all(address.startswith(("127.", "localhost:", "[::1]:")) for address in addresses):
        options.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    credentials = _credentials(tls) if tls is not None else None
    if len(addresses) == 1:
        return Target(addresses[0], options, credentials)
    # With a list of IP addresses, gRPC knows no name that a certificate could have.
    options.append(("grpc.default_authority", addresses[0]))
    return Target(_listed(addresses), options, credentials)


def _listed(addresses: Sequence[str]) -> str:
    """gRPC's target for several addresses. It takes IP addresses of one family, so names are looked up here."""
    found: dict[str, list[str]] = {"ipv4": [], "ipv6": []}
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        except (ValueError, OSError) as error:
            message = f"address: {address!r} cannot be one of several addresses, which are host:port ({error})"
            raise InvalidRequestError(message, field="address", value=address) from None
        for name, family, form in (("ipv4", socket.AF_INET, "{}:{}"), ("ipv6", socket.AF_INET6, "[{}]:{}")):
            own = [form.format(*info[4][:2]) for info in infos if info[0] == family]
            found[name].append(",".join(dict.fromkeys(own)))
    chosen = next((name for name, parts in found.items() if all(parts)), None)
    if chosen is None:
        message = f"address: some of {', '.join(addresses)} have IPv4 addresses only, and some IPv6 only"
        raise InvalidRequestError(message, field="address")
    return f"{chosen}:{','.join(found[chosen])}"


def _service_config(retry: RetryConfig, *, is_balanced: bool) -> str:
    method: dict[str, Any] = {"name": [{}]}
    if retry.max_attempts > 1:
        method["retryPolicy"] = {
            "maxAttempts": retry.max_attempts,
            "initialBackoff": f"{retry.initial_backoff_s:.9f}s",
            "maxBackoff": f"{retry.max_backoff_s:.9f}s",
            "backoffMultiplier": retry.backoff_multiplier,
            # A full queue is tried again only when its error says so: servers forbid it otherwise. A server that stops ends calls
            # with CANCELLED that it has not taken yet (grpc/grpc#41785).
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"],
        }
    config: dict[str, Any] = {"methodConfig": [method]}
    if is_balanced:
        config["loadBalancingConfig"] = [{"round_robin": {}}]
    return json.dumps(config)


def _credentials(tls: TLSConfig) -> grpc.ChannelCredentials:
    root, key, chain = (
        None if path is None else Path(path).read_bytes() for path in (tls.root_certificates, tls.private_key, tls.certificate)
    )
    return grpc.ssl_channel_credentials(root, key, chain)


class _Key:
    """Adds the key to the metadata of a call, of either kind of channel. The clients need none: they send the key themselves."""

    def __init__(self, api_key: str) -> None:
        self._entry = ("authorization", f"Bearer {api_key}")

    def _intercept(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        """The call itself, or what `grpc.aio` awaits for it. What these details lack, gRPC takes from the call."""
        metadata = grpc.aio.Metadata(*(details.metadata or ()), self._entry)
        changed = grpc.aio.ClientCallDetails(details.method, details.timeout, metadata, details.credentials, details.wait_for_ready)
        return continuation(changed, request)


class _AnyCall(
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
