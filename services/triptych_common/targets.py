"""Targets: how settings name other services. `cluster.resolver` finds the addresses that a target stands for."""

from __future__ import annotations

import ipaddress
import re
import socket

#: All forms of a target, for messages.
FORMS = "host:port, dns:host:port, static:host:port, file:/path, kubernetes:service:port or valkey://host:port"
_SCHEME = re.compile(r"(dns|static|kubernetes):(.*)|(file):(/.*)", re.DOTALL)
#: The URL of a registry, with TLS if the scheme ends with s.
REGISTRY_URL = re.compile(r"(?:valkey|redis)s?://\S+")
#: The password in a URL, behind one of the two groups.
URL_PASSWORD = re.compile(r"((?<=://)[^/@\s]*:)[^/@\s]*(?=@)|([?&]password=)[^&\s]*")
#: Name of a Service, perhaps its namespace, and a port.
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)?:[0-9]{1,5}")
_ADDRESS = re.compile(r"(?:\[([0-9a-zA-Z:.%]+)\]|([^\s\[\]/@\x00\ufeff]+)):([0-9]{1,5})")


def parse_target(target: str) -> tuple[str, str]:
    """Scheme (`dns`, `static`, `file`, `kubernetes`, `registry`, or empty) and rest: an absolute path after `file:`, the URL of a
    registry, otherwise host:port.

    Raises:
        ValueError: the target is not of one of these forms.
    """
    if REGISTRY_URL.fullmatch(target):
        return "registry", target
    match = _SCHEME.fullmatch(target)
    scheme, rest = (match[1] or match[3], match[2] or match[4] or "") if match else ("", target)
    if scheme == "kubernetes" and not _SERVICE.fullmatch(rest):
        raise ValueError(
            f"{target!r} is not kubernetes:service:port or kubernetes:service.namespace:port, without .svc behind them"
        )
    if scheme != "file":
        try:
            parse_address(rest)
        except ValueError:
            raise ValueError(f"{target!r} is not {FORMS}") from None
    return scheme, rest


def parse_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of `host:port`. Raises ValueError if it is something else."""
    match = _ADDRESS.fullmatch(address)
    host, port = (match[1] or match[2], int(match[3])) if match else ("", 0)
    is_bad_ipv6 = (":" in host or (match is not None and match[1])) and not _is_ipv6(host)
    if not host or not 0 < port < 65536 or is_bad_ipv6:
        raise ValueError(f"{address!r} is not host:port")
    return host, port


def is_loopback(host: str) -> bool:
    """Whether a socket that listens at this IP address or name is reachable from this machine only."""
    try:
        found = [ipaddress.ip_address(host)]
    except ValueError:
        found = _looked_up(host)
    # ::ffff:127.0.0.1 is loopback, too.
    return bool(found) and all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in found)


def _looked_up(name: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses of a name; none if nobody knows it."""
    try:
        return [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in socket.getaddrinfo(name or "*", None)]
    except (OSError, UnicodeError):
        return []


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
