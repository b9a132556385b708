"""Resolvers: the sources of the addresses of services.

The contract is that of gRPC's resolvers (grpc-go resolver/resolver.go): a resolver reports the **whole** set of addresses, at first
and after each change. An error leaves the set unchanged, because an unreachable name server says nothing about the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import os
import re
import socket
import stat
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from triptych_common.targets import parse_address

log = logging.getLogger(__name__)
#: Time between two lookups of a name, and time after a failed lookup, in seconds.
DNS_INTERVAL_S, DNS_RETRY_S = 5.0, 1.0
#: Time between two looks at a file, in seconds.
FILE_INTERVAL_S = 1.0
_MAX_FILE_BYTES = 1 << 20

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


class _Changes:
    """Reports a set of addresses only when it changes, and logs a failure only when its reason changes.

    Args:
        source: where the addresses come from, for the log.
    """

    def __init__(self, source: str, update: Update) -> None:
        self._source = source
        self._update = update
        self._last: tuple[str, ...] | None = None
        #: Why the last attempt failed. Empty if it did not.
        self.failure = ""

    def found(self, addresses: Iterable[str]) -> None:
        self.failure, found = "", tuple(addresses)
        if found != self._last:
            log.info("%s: the addresses are %s", self._source, ", ".join(found) or "none")
            self._last = found
            self._update(found)

    def failed(self, why: str) -> None:
        if why != self.failure:
            log.warning("%s cannot be read: %s", self._source, why)
        self.failure = why


class LastKnown(_Changes):
    """The addresses of a source that may be away for a while, and come back without a memory.

    While it is away, the last known addresses stay. So they do for `settle_s` after it is back, because services may have to tell
    it of themselves again first. And there never are none once there were some: who uses them sees for itself which one answers.

    Args:
        source: where the addresses come from, for the log.
        settle_s: time that services need to tell the source of themselves, in seconds.
        clock: seconds, monotonic.
    """

    def __init__(self, source: str, settle_s: float, update: Update, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(source, update)
        self._settle_s, self._clock = settle_s, clock
        self._settled_s = -math.inf

    @property
    def settle_left_s(self) -> float:
        """Time until the source knows all again, in seconds; 0 if it does."""
        return max(0.0, self._settled_s - self._clock())

    def restarted(self) -> None:
        """The source may have lost what it knew."""
        self._settled_s = self._clock() + self._settle_s

    def found(self, addresses: Iterable[str]) -> None:
        """The source says that these are all addresses."""
        if self.failure:
            self.restarted()
        known = self._last or ()
        super().found(tuple(sorted({*addresses, *(known if self.settle_left_s else ())})) or known)


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
        changes = _Changes(f"the name {self._host}", update)
        while True:
            self._hint.clear()
            try:
                found = await self._lookup(self._host)
            except OSError as error:
                changes.failed(error.strerror or str(error))
            else:
                changes.found(tuple(sorted({join(ip, self._port) for ip in found})))
            await asyncio.sleep(min(DNS_RETRY_S, self._interval_s))  # several hints in this time cause one lookup
            if not changes.failure:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_s):
                        await self._hint.wait()

    def resolve_now(self) -> None:
        self._hint.set()


class FileResolver:
    """The addresses in a file: one host:port a line, comments from `#` on. Names are dialled as they are.

    The file is read periodically. Lines that are no address are logged and skipped. A file that cannot be read changes nothing.

    Args:
        path: the file. It may appear later.
        interval_s: time between two looks at the file.
    """

    def __init__(self, path: Path, interval_s: float = FILE_INTERVAL_S) -> None:
        self._path = path
        self._interval_s = interval_s

    async def watch(self, update: Update) -> None:
        content: bytes | None = None
        addresses: tuple[str, ...] = ()
        changes = _Changes(f"the file {self._path}", update)
        while True:
            try:
                found = await asyncio.to_thread(_read_file, self._path)
            except OSError as error:
                changes.failed(error.strerror or str(error))
            else:
                if found != content:  # bad lines are logged once
                    content, addresses = found, self._addresses_in(found)
                changes.found(addresses)
            await asyncio.sleep(self._interval_s)

    def resolve_now(self) -> None:
        """Nothing to do: the file is read soon anyway."""

    def _addresses_in(self, content: bytes) -> tuple[str, ...]:
        addresses: dict[str, None] = {}  # in the file's order
        for number, line in enumerate(re.split(r"\r\n|\r|\n", content.decode("utf-8-sig", errors="replace")), 1):
            address = line.partition("#")[0].strip()
            if not address:
                continue
            try:
                addresses[join(*parse_address(address))] = None
            except ValueError as error:
                log.warning("%s: line %d is skipped: %s", self._path, number, error)
        return tuple(addresses)


def _read_file(path: Path) -> bytes:
    # Reading a pipe or a terminal would block a thread for ever.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            raise OSError(errno.EINVAL, f"it is no file of at most {_MAX_FILE_BYTES} bytes")
        return file.read(_MAX_FILE_BYTES)


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


def join(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _system_lookup(host: str) -> Sequence[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"it is no host name ({error})") from error
    return [str(info[4][0]) for info in found]
