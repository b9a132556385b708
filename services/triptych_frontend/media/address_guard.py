"""Prevents fetches for clients from reaching this network. A name is resolved once, and the checked address is connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

#: Most lookups at the same time: as many as there may be connections.
_MAX_LOOKUPS = 64
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: IPv6 prefixes whose last 32 bits are an IPv4 address that a gateway may forward to (NAT64, RFC 6052 and 8215).
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
#: The part of IPv6 that is routed on the public internet. Other addresses that Python calls global are site-local, old forms of
#: IPv4, or unassigned.
_IPV6_ROUTED = (ipaddress.IPv6Network("2000::/3"), _NAT64[0])
#: Special networks that `is_global` of some Python versions does not know: reserved by IETF (RFC 6890), documentation (RFC 9637).
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv6Network("3fff::/20"))


class ForbiddenAddressError(Exception):
    """The address is not on the public internet."""

    def __init__(self, host: str, address: str) -> None:
        named = host if host == address else f"{host} ({address})"
        super().__init__(f"{named} is a private, loopback, link-local or otherwise special address")


def is_public(address: str) -> bool:
    """Whether an IP address, as text, is on the public internet."""
    parsed: _Address = ipaddress.ip_address(address.partition("%")[0])
    if not parsed.is_global or parsed.is_multicast or any(parsed in network for network in _SPECIAL):
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and not any(parsed in network for network in _IPV6_ROUTED):
        return False
    return all(inner.is_global and not inner.is_multicast for inner in _embedded(parsed))


def _embedded(address: _Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    teredo = address.teredo or ()
    found = [address.ipv4_mapped, address.sixtofour, *teredo]
    if any(address in network for network in _NAT64):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]


def check_literal(host: str) -> None:
    """Raise ForbiddenAddressError for an IP address that is not public. Names pass here; GuardedResolver checks them."""
    try:
        public = is_public(host)
    except ValueError:
        return
    if not public:
        raise ForbiddenAddressError(host, host)


class GuardedResolver(AbstractResolver):
    """Resolves names to public addresses. aiohttp connects to the returned addresses, so no second lookup can give another one."""

    def __init__(self) -> None:
        self._lookups = _OwnThreads()
        self._inner = ThreadedResolver(self._lookups)  # type: ignore[arg-type]  # it needs nothing else of a loop

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Addresses of the host. Raises ForbiddenAddressError if any is not public, OSError if there are none."""
        results = await self._inner.resolve(host, port, family)
        for result in results:
            if not is_public(result["host"]):
                raise ForbiddenAddressError(host, result["host"])
        return results

    async def close(self) -> None:
        await self._inner.close()
        self._lookups.close()


class _OwnThreads:
    """Looks names up in its own threads. A lookup without an answer blocks its thread for longer than its caller waits, and the
    event loop has only a few threads, which others need."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="lookup")

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
        """Same as the event loop's method."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(socket.getaddrinfo, host, port, **options))

    async def getnameinfo(self, address: Any, flags: int) -> Any:
        """Same as the event loop's method."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, socket.getnameinfo, address, flags)

    def close(self) -> None:
        """Release the threads without waiting for lookups."""
        self._pool.shutdown(wait=False, cancel_futures=True)
