"""Prevents fetches for clients from reaching this network.

`check_url` looks at each URL, also at a redirect's. GuardedConnector resolves a name once, and connects to an address that was
checked.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp import ClientRequest, ClientTimeout, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.resolver import ThreadedResolver
from aiohttp.tracing import Trace
from yarl import URL

#: Most lookups at the same time: as many as there may be connections.
_MAX_LOOKUPS = 64
#: The last part of a host that some program takes for an IPv4 address.
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_NAME = re.compile(r"[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*\.?")
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: IPv6 prefixes whose last 32 bits are an IPv4 address that a gateway may forward to (NAT64, RFC 6052 and 8215).
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
#: The part of IPv6 that is routed on the public internet. Other addresses that Python calls global are site-local, old forms of
#: IPv4, or unassigned.
_IPV6_ROUTED = (ipaddress.IPv6Network("2000::/3"), _NAT64[0])
#: Special networks that `is_global` of some Python versions does not know: reserved by IETF (RFC 6890), documentation (RFC 9637).
#: The last one is every Azure machine's own host, though it looks public.
_SPECIAL = (ipaddress.IPv4Network("192.0.0.0/24"), ipaddress.IPv6Network("3fff::/20"), ipaddress.IPv4Network("168.63.129.16/32"))


class ForbiddenAddressError(Exception):
    """The URL may not be fetched: the message says what it leads to, and which rule forbids that."""


def is_public(address: str) -> bool:
    """Whether an IP address, as text, is on the public internet."""
    parsed: _Address = ipaddress.ip_address(address.partition("%")[0])
    if not parsed.is_global or parsed.is_multicast or any(parsed in network for network in _SPECIAL):
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and not any(parsed in network for network in _IPV6_ROUTED):
        return False
    return all(is_public(str(inner)) for inner in _embedded(parsed))


def _embedded(address: _Address) -> list[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 address contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    teredo = address.teredo or ()
    found = [address.ipv4_mapped, address.sixtofour, *teredo]
    if any(address in network for network in _NAT64):
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [inner for inner in found if inner is not None]


def check_url(url: URL) -> None:
    """Raise ForbiddenAddressError unless the URL has a public IP address or a name. GuardedConnector checks what a name stands for.

    Programs disagree on other hosts: some take `127.1` or `2130706433` for 127.0.0.1. So an IP address must be in its usual form.
    """
    # With percent signs and letters of other scripts resolved as far as aiohttp resolves them: it connects to this.
    host = url.raw_host or ""
    if url.raw_user is not None or url.raw_password is not None:
        raise ForbiddenAddressError(f"has a user name or a password before {host}; media are fetched without")
    if "%" in host:
        raise ForbiddenAddressError(f"has the host {host}, and a host may have neither a zone nor a percent sign")
    try:
        _check_address(host, host)
    except ValueError:
        _check_name(host)


def _check_name(host: str) -> None:
    if _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        raise ForbiddenAddressError(f"has the host {host}, which is a number; an IPv4 address must be four decimal numbers")
    if not _NAME.fullmatch(host):
        raise ForbiddenAddressError(f"has the host {host}, which is neither a name nor an IP address")


def _check_address(host: str, address: str) -> None:
    """Raise ForbiddenAddressError for an address that is not public, ValueError for what is no address."""
    if not is_public(address):
        named = host if host == address else f"{host} ({address})"
        rule = "a private, loopback, link-local or otherwise special address (allow_private_media_addresses)"
        raise ForbiddenAddressError(f"leads to {named}, which is {rule}")


class GuardedConnector(TCPConnector):
    """Connects to public addresses only. It looks a name up once for each connection, and connects to the address that was checked.

    The peer of each connection is checked again before anything is sent, so that no other way to spell or to find an address leads
    into this network.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, resolver=GuardedResolver())

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """Same as TCPConnector's. Raises ForbiddenAddressError if the peer is not public."""
        connection = await super().connect(req, traces, timeout)
        try:
            peer = connection.transport.get_extra_info("peername") if connection.transport is not None else None
            if peer is None:
                raise ForbiddenAddressError(f"leads to {req.url.raw_host}, and the connection has no address to check")
            _check_address(req.url.raw_host or "", peer[0])
        except BaseException:
            connection.close()
            raise
        return connection


class GuardedResolver(AbstractResolver):
    """Resolves names to public addresses. aiohttp connects to the returned addresses, so no second lookup can give another one."""

    def __init__(self) -> None:
        self._lookups = _OwnThreads()
        self._inner = ThreadedResolver(self._lookups)  # type: ignore[arg-type]  # it needs nothing else of a loop

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        """Addresses of the host. Raises ForbiddenAddressError if any is not public, OSError if there are none."""
        results = await self._inner.resolve(host, port, family)
        for result in results:
            _check_address(host, result["host"])
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
