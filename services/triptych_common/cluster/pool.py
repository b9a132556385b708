"""A pool of services of one kind: it connects to every address from a resolver, and chooses among the ready services."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from triptych.errors import ServiceUnavailableError

from triptych_common.cluster.connection import Connection
from triptych_common.cluster.endpoint import Endpoint
from triptych_common.cluster.resolver import Resolver

log = logging.getLogger(__name__)
C = TypeVar("C", bound=Connection)
RETRY_AFTER_S = 2.0
#: How long a request waits for a service that starts or restarts, in seconds. It is longer than the time to notice a started
#: service, which is the channel's pause between connection attempts (2.4 s with jitter) plus one pause of `Connection.run`.
GRACE_S = 4.0


class Pool(Generic[C]):
    """Keeps a connection to each service that the resolver names. Use it on the event loop only.

    Args:
        kind: what the services are, for messages: engine, encoder, frontend.
        resolver: names their addresses.
        connect: makes a connection. The pool runs and ends it.
        on_change: awaited after changes of the connections, one call at a time.
    """

    def __init__(
        self,
        kind: str,
        resolver: Resolver,
        connect: Callable[[str], C],
        on_change: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._kind = kind
        self._resolver = resolver
        self._connect = connect
        self._on_change = on_change
        #: address -> connection and the task that runs it
        self._connections: dict[str, tuple[C, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._ready: tuple[C, ...] = ()
        self._has_ready = asyncio.Event()
        self._changed = asyncio.Event()
        #: Set at the next change, and then replaced by a new event.
        self._next_change = asyncio.Event()

    @property
    def connections(self) -> tuple[C, ...]:
        """All connections, ready or not, in the resolver's order."""
        return tuple(connection for connection, _ in self._connections.values())

    @property
    def ready(self) -> tuple[C, ...]:
        """The services that take new work, one per instance. Each change makes a new tuple; no tuple is modified."""
        return self._ready

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The current state of all services."""
        return tuple(connection.endpoint for connection in self.connections)

    def by_instance(self, instance_id: str) -> C | None:
        """The connected service with this instance id, even if it takes no new work."""
        return next((c for c in self.connections if c.instance is not None and c.instance.id == instance_id), None)

    def least_loaded(self, exclude: frozenset[C] = frozenset()) -> C | None:
        """The ready service with the least load, or None. A service in doubt is chosen only when there is no other."""
        candidates = [c for c in self._ready if c not in exclude]
        return min(candidates, key=lambda c: (c.in_doubt.is_set(), c.load), default=None)

    def ranked(self, key: bytes) -> list[C]:
        """The ready services in order of preference for the key. Services in doubt come last.

        Rendezvous hashing (Thaler and Ravishankar, 1996): when a service leaves, only its own keys move.
        """
        return sorted(self._ready, key=lambda c: (not c.in_doubt.is_set(), rendezvous(c.address, key)), reverse=True)

    def none_left(self, what: str = "") -> ServiceUnavailableError:
        """The error for a request that finds no service. It says of each service why it takes no work."""
        away = "; ".join(f"{c.address}: {c.why_away or 'it failed'}" for c in self.connections)
        why = away or "none is known"
        return ServiceUnavailableError(f"no {self._kind} can take this request ({what or why})", retry_after_s=RETRY_AFTER_S)

    async def until_ready(self, timeout_s: float = GRACE_S) -> None:
        """Wait up to `timeout_s` for a ready service. Raises ServiceUnavailableError when there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_ready.wait()
        except TimeoutError:
            raise self.none_left() from None

    async def until_tried(self, timeout_s: float = GRACE_S) -> None:
        """Wait until one service is ready or all were tried, e.g. after this process starts, but at most `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._ready and not (self._connections and all(c.was_tried.is_set() for c in self.connections)):
                    await self._next_change.wait()

    async def wait_for_instance(self, instance_id: str, timeout_s: float) -> C | None:
        """The connected service with this instance id, which may still be connecting; None if it does not connect in time."""
        deadline_s = time.monotonic() + timeout_s
        while (found := self.by_instance(instance_id)) is None and (left_s := deadline_s - time.monotonic()) > 0:
            change = self._next_change
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await change.wait()
        return found

    async def run(self) -> None:
        """Follow the resolver until cancelled, then end all connections."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name=f"{self._kind} resolver")
                tasks.create_task(self._report(), name=f"{self._kind} pool")
        finally:
            running = [*(task for _, task in self._connections.values()), *self._leaving]
            self._connections.clear()
            self._note_change()
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                await self._resolver.watch(self._set_addresses)
                log.error("the resolver of %ss ended; starting it again", self._kind)
            except Exception:
                log.exception("the resolver of %ss failed; starting it again", self._kind)
            await asyncio.sleep(1)

    def _set_addresses(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if address not in self._connections:
                connection = self._connect(address)
                connection.on_change = self._note_change
                task = asyncio.create_task(connection.run(), name=f"{self._kind} {address}")
                self._connections[address] = connection, task
        for address in [known for known in self._connections if known not in addresses]:
            connection, task = self._connections.pop(address)
            # Its current work may go on: a service can be alive after its name has disappeared.
            connection.goes_away()
            leaving = asyncio.create_task(_leave(connection, task), name=f"{self._kind} {address} leaving")
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        self._connections = {address: self._connections[address] for address in addresses}
        self._note_change()

    def _note_change(self) -> None:
        by_instance: dict[str, C] = {}
        for connection in self.connections:
            if connection.is_ready and connection.instance is not None:
                # A host name with an IPv4 and an IPv6 address is one service.
                by_instance.setdefault(connection.instance.id or connection.address, connection)
        ready = tuple(by_instance.values())
        if len(ready) < len(self._ready):
            self._resolver.resolve_now()
        self._ready = ready
        if ready:
            self._has_ready.set()
        else:
            self._has_ready.clear()
        self._changed.set()
        self._next_change.set()
        self._next_change = asyncio.Event()

    async def _report(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._on_change is not None:
                try:
                    await self._on_change()
                except Exception:
                    log.exception("unexpected error after a change of the %ss", self._kind)


async def _leave(connection: Connection, task: asyncio.Task[None]) -> None:
    """End a connection once it is lost or has no more work."""
    try:
        while connection.is_connected and not connection.is_idle:  # noqa: ASYNC110 - the last call's end has no event
            await asyncio.sleep(0.1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rendezvous(name: str, key: bytes) -> bytes:
    """The weight of a service for a key. The service with the highest weight owns the key."""
    return hashlib.sha256(name.encode() + key).digest()
