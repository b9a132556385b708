"""Resolvers: the sources of the addresses of services.

The contract is that of gRPC's resolvers (grpc-go resolver/resolver.go): a resolver reports the **whole** set of addresses, at first
and after each change. An error leaves the set unchanged, because an unreachable name server says nothing about the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from triptych_common.errors import StartupError

log = logging.getLogger(__name__)
#: Time between two lookups of a name, and time after a failed lookup, in seconds.
DNS_INTERVAL_S, DNS_RETRY_S = 5.0, 1.0

#: Takes the whole set of addresses (host:port) in a stable order.
Update = Callable[[tuple[str, ...]], None]
#: Takes a host name and returns its IP addresses. Raises OSError.
Lookup = Callable[[str], Awaitable[Sequence[str]]]


class Resolver(Protocol):
    """Finds the addresses of one kind of service. Kubernetes or a registry can be further implementations."""

    async def watch(self, update: Update) -> None:
        """Report the whole set, first and after each change, until cancelled. `update` must not raise."""
        ...

    def resolve_now(self) -> None:
        """A hint that the set may have changed, e.g. because a connection was lost."""
        ...


class StaticResolver:
    """A fixed set of addresses."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))

    async def watch(self, update: Update) -> None:
        update(self._addresses)
        await asyncio.Event().wait()

    def resolve_now(self) -> None:
        """Nothing to do: the set is fixed."""


class DnsResolver:
    """All addresses of a host name, looked up periodically: a headless service of Kubernetes, or a scaled service of Compose.

    Args:
        host: the host name.
        port: the port for every address.
        interval_s: time between two lookups.
        lookup: looks a name up; the system's resolver by default.
    """

    def __init__(self, host: str, port: int, interval_s: float = DNS_INTERVAL_S, lookup: Lookup | None = None) -> None:
        self._host = host
        self._port = port
        self._interval_s = interval_s
        self._lookup = lookup or _system_lookup
        self._hint = asyncio.Event()

    async def watch(self, update: Update) -> None:
        last: tuple[str, ...] | None = None
        failure = ""
        while True:
            self._hint.clear()
            try:
                found = await self._lookup(self._host)
            except OSError as error:
                why = error.strerror or str(error)
                if why != failure:
                    log.warning("the name %s cannot be looked up: %s", self._host, why)
                failure = why
            else:
                failure, addresses = "", tuple(sorted({_join(ip, self._port) for ip in found}))
                if addresses != last:
                    log.info("%s is at %s", self._host, ", ".join(addresses) or "no address")
                    update(addresses)
                last = addresses
            await asyncio.sleep(min(DNS_RETRY_S, self._interval_s))  # several hints in this time cause one lookup
            if not failure:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hint.wait(), self._interval_s)

    def resolve_now(self) -> None:
        self._hint.set()


class JoinedResolver:
    """The union of the addresses of several resolvers."""

    def __init__(self, resolvers: Sequence[Resolver]) -> None:
        self._resolvers = resolvers

    async def watch(self, update: Update) -> None:
        parts: list[tuple[str, ...] | None] = [None] * len(self._resolvers)

        def on_part(index: int, addresses: tuple[str, ...]) -> None:
            parts[index] = addresses
            update(tuple(dict.fromkeys(address for part in parts for address in part or ())))

        async with asyncio.TaskGroup() as tasks:
            for index, resolver in enumerate(self._resolvers):
                tasks.create_task(resolver.watch(lambda addresses, index=index: on_part(index, addresses)))  # type: ignore[misc]

    def resolve_now(self) -> None:
        for resolver in self._resolvers:
            resolver.resolve_now()


def resolver_of(targets: Sequence[str]) -> Resolver:
    """The resolver for the targets in a setting.

    Args:
        targets: each `host:port`. An IP address or localhost is used as it is. Any other name stands for all its addresses, which
            are looked up periodically. `static:host:port` connects to the name without such lookups; `dns:host:port` looks up any
            name.

    Raises:
        StartupError: a target is not of this form.
    """
    static, resolvers = [], list[Resolver]()
    for target in targets:
        scheme, rest = target.split(":", 1) if target.startswith(("static:", "dns:")) else ("", target)
        host, port = _split(rest, target)
        if scheme == "dns" or (not scheme and not _is_literal(host)):
            resolvers.append(DnsResolver(host, port))
        else:
            static.append(_join(host, port))
    if static or not resolvers:
        resolvers.insert(0, StaticResolver(static))
    return resolvers[0] if len(resolvers) == 1 else JoinedResolver(resolvers)


def _split(address: str, target: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise StartupError(f"{target!r} is not host:port, dns:host:port or static:host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_literal(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _system_lookup(host: str) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"it is no host name ({error})") from error
    return [str(info[4][0]) for info in found]
