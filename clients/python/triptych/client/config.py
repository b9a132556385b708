"""Settings of a client's connection."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from triptych.errors import InvalidRequestError

#: Where the gateway of `triptych serve` takes gRPC.
DEFAULT_ADDRESS = "127.0.0.1:50051"
_TARGET = re.compile(r"(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds|google-c2p):")


def addresses_of(address: str | Sequence[str] | None) -> tuple[str, ...]:
    """The addresses that a client uses.

    Args:
        address: one, several, or several separated by commas. None: those of TRIPTYCH_ADDRESS, or this machine's gateway.

    Raises:
        InvalidRequestError: there is none.
    """
    if address is None:
        address = os.environ.get("TRIPTYCH_ADDRESS") or DEFAULT_ADDRESS
    if isinstance(address, str):
        # Targets of gRPC may have commas, too: ipv4:10.0.0.1:1,10.0.0.2:1
        address = [address] if _TARGET.match(address) else address.split(",")
    addresses = tuple(part.strip() for part in address if part.strip())
    if not addresses:
        raise InvalidRequestError("address is empty; give host:port", field="address")
    return addresses


def key_of(api_key: str | None) -> str | None:
    """The key that a client sends: by default that of TRIPTYCH_API_KEY. An empty one is none."""
    return (os.environ.get("TRIPTYCH_API_KEY") if api_key is None else api_key) or None


@dataclass(frozen=True, kw_only=True)
class TLSConfig:
    """TLS, by files in PEM. They are read when the client is made."""

    root_certificates: str | os.PathLike[str] | None = None
    """Certificates of the authorities that may vouch for the server. None: those of gRPC."""
    certificate: str | os.PathLike[str] | None = None
    """The client's own certificate chain, for servers that ask for one (mTLS). It needs `private_key`."""
    private_key: str | os.PathLike[str] | None = None
    """Key of `certificate`."""
    server_name: str | None = None
    """Name in the server's certificate, if it is not the host of the address."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.private_key is None):
            raise ValueError("certificate and private_key belong together: give both or neither")


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """Retries of calls that end with UNAVAILABLE, or that a stopping server cancelled, before anything of the answer has come.

    gRPC makes them, within the deadline.

    Where the server says when it is worth another try, it is made then: also for a full queue or a rate (RESOURCE_EXHAUSTED),
    unless that is more than 30 s away.
    """

    max_attempts: int = 4
    """Attempts, the first included. 1 turns retries off. gRPC makes at most 5."""
    initial_backoff_s: float = 0.1
    """Wait before the second attempt, in seconds. Each wait is random between 80 % and 120 % of what is told here."""
    max_backoff_s: float = 2.0
    """Longest wait between attempts, in seconds, before the random part."""
    backoff_multiplier: float = 2.0
    """Each wait is this many times the one before it."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_attempts <= 5:
            raise ValueError(f"max_attempts is {self.max_attempts}, not in [1, 5]")
        _check_positive(self, "initial_backoff_s", "max_backoff_s", "backoff_multiplier")


@dataclass(frozen=True, kw_only=True)
class KeepAliveConfig:
    """HTTP/2 pings, which notice a connection that is dead."""

    time_s: float = 20.0
    """A connection without traffic is pinged after this long, in seconds. Servers refuse less than 5 s."""
    timeout_s: float = 10.0
    """A connection whose ping is not answered for this long is closed, in seconds."""
    permit_without_calls: bool = False
    """Ping while there is no call, too."""

    def __post_init__(self) -> None:
        _check_positive(self, "time_s", "timeout_s")


def _check_positive(config: object, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} is {getattr(config, name)}, not positive")
