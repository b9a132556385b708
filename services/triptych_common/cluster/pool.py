"""A pool of services of one kind: it connects to every address from a resolver, and chooses among the ready services."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence, Set
from typing import Generic, TypeVar

from triptych.errors import QueueFullError, ServiceUnavailableError, TriptychError

from triptych_common.cluster.connection import Connection
from triptych_common.cluster.endpoint import Endpoint
from triptych_common.cluster.resolver import Resolver
from triptych_common.rpc.security.tls import Tls

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
        tls: this process's certificate; None for no TLS. When it is renewed, each connection is replaced, without loss.
    """

    def __init__(
        self,
        kind: str,
        resolver: Resolver,
        connect: Callable[[str], C],
        on_change: Callable[[], Awaitable[None]] | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._kind = kind
        self._tls = tls
        self._resolver = resolver
        self._connect = connect
        self._on_change = on_change
        #: address -> connection and the task that runs it
        self._connections: dict[str, tuple[C, asyncio.Task[None]]] = {}
        #: The same for connections that will replace these, with a renewed certificate.
        self._successors: dict[str, tuple[C, asyncio.Task[None]]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._ready: tuple[C, ...] = ()
        #: Address -> the connection that took new work there less than GRACE_S ago, and when it stopped, on the loop's clock.
        self._left: dict[str, tuple[C, float]] = {}
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

    def least_loaded(
        self, suits: Callable[[C], bool] = lambda one: True, pick: Callable[[Sequence[C]], C] | None = None
    ) -> C | None:
        """The ready service with the least load, or None. A service in doubt is chosen only when there is no other.

        Args:
            suits: whether a service can be chosen at all, e.g. because it has the model.
            pick: chooses in another way than by load.
        """
        candidates = [c for c in self._ready if suits(c)]
        if len(candidates) < 2:
            return candidates[0] if candidates else None
        candidates = [c for c in candidates if not c.is_doubtful] or candidates
        return pick(candidates) if pick is not None else min(candidates, key=lambda c: c.load)

    def ranked(self, key: bytes) -> list[C]:
        """The ready services in order of preference for the key. Services in doubt come last.

        Rendezvous hashing (Thaler and Ravishankar, 1996): when a service leaves, only its own keys move.
        """
        return sorted(self._ready, key=lambda c: (not c.is_doubtful, rendezvous(c.address, key)), reverse=True)

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

    async def until_tried(self, timeout_s: float = GRACE_S, *, all_of_them: bool = False) -> None:
        """Wait until one service is ready or all were tried, e.g. after this process starts, but at most `timeout_s`.

        Args:
            all_of_them: a ready one is not enough.
        """

        def were_tried() -> bool:
            return bool(self._connections) and all(c.was_tried.is_set() for c in self.connections)

        await self.until(lambda: were_tried() or (bool(self._ready) and not all_of_them), timeout_s)

    async def until(self, condition: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait until a change of the services makes the condition true. Returns False if none does in time; None is no limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._next_change.wait()
        return condition()

    def may_try_another(self, tried: Set[str]) -> bool:
        """Whether a request may go to one more service: to each once, and to one that was restarted meanwhile.

        Without this limit, a request that ends each service it reaches would follow their restarts for ever.

        Args:
            tried: ids of the instances that did not do.
        """
        return len(tried) <= len(self._connections)

    def grace_left_s(
        self,
        tried: Set[str] = frozenset(),
        error: TriptychError | None = None,
        suits: Callable[[C], bool] = lambda one: True,
    ) -> float:
        """How long a request that finds no service should wait for one, in seconds; 0 or less if it should not.

        In a rolling restart the last service may leave while the one before it is ready again, but not connected yet.

        Args:
            tried: see `may_try_another`.
            error: why the last service did not do. What full services refuse does not wait: that would fill this process too.
            suits: whether a service could be chosen if it were ready.
        """
        if isinstance(error, QueueFullError) or not self.may_try_another(tried):
            return 0.0
        # Not by the resolver's addresses: where a successor has another address, the one that left may be unlisted already.
        there = {one.address for one in self._ready}
        left_s = (when_s for address, (one, when_s) in self._left.items() if address not in there and suits(one))
        return max(left_s, default=-math.inf) + GRACE_S - asyncio.get_running_loop().time()

    async def wait_for_instance(self, instance_id: str, timeout_s: float) -> C | None:
        """The connected service with this instance id, which may still be connecting; None if it does not connect in time."""
        await self.until(lambda: self.by_instance(instance_id) is not None, timeout_s)
        return self.by_instance(instance_id)

    async def run(self) -> None:
        """Follow the resolver until cancelled, then end all connections."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(), name=f"{self._kind} resolver")
                tasks.create_task(self._report(), name=f"{self._kind} pool")
                if self._tls is not None:
                    tasks.create_task(self._follow_certificate(self._tls), name=f"{self._kind} certificate")
        finally:
            running = [*(task for _, task in (*self._connections.values(), *self._successors.values())), *self._leaving]
            self._connections.clear()
            self._successors.clear()
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
                self._connections[address] = self._start(address)
        for address in [known for known in self._connections if known not in addresses]:
            # Its current work may go on: a service can be alive after its name has disappeared.
            for connections in (self._connections, self._successors):
                if address in connections:
                    self._retire(*connections.pop(address), "its address is no longer listed")
        self._connections = {address: self._connections[address] for address in addresses}
        self._note_change()

    def _start(self, address: str) -> tuple[C, asyncio.Task[None]]:
        connection = self._connect(address)
        connection.on_change = self._note_change
        return connection, asyncio.create_task(connection.run(), name=f"{self._kind} {address}")

    def _retire(self, connection: C, task: asyncio.Task[None], why: str, *, is_replaced: bool = False) -> None:
        """Give a connection no more work, and end it after its last.

        Args:
            is_replaced: the service is still there, so that all calls in flight can end.
        """
        connection.on_change = lambda: None
        connection.goes_away(why)
        leaving = asyncio.create_task(_leave(connection, task, is_replaced), name=f"{self._kind} {connection.address} leaving")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def _follow_certificate(self, tls: Tls) -> None:
        """Connect to all services again after each renewal of the certificate. gRPC's channels keep their first one."""
        while True:
            await tls.changed()
            for address in self._connections:
                if address in self._successors:
                    self._retire(*self._successors.pop(address), "the certificate was renewed again")
                self._successors[address] = self._start(address)
            self._note_change()

    def _move_over(self) -> None:
        """Put each connection with a renewed certificate in the place of the earlier one, once it can take over all new work."""
        for address, (new, task) in [*self._successors.items()]:
            old, old_task = self._connections[address]
            if (new.is_connected and (new.is_ready or not old.is_ready)) or not old.is_connected:
                del self._successors[address]
                self._connections[address] = new, task
                self._retire(old, old_task, "another connection has the renewed certificate", is_replaced=True)

    def _note_change(self) -> None:
        self._move_over()
        by_instance: dict[str, C] = {}
        for connection in self.connections:
            if connection.is_ready and connection.is_connected:
                # A host name with an IPv4 and an IPv6 address is one service.
                by_instance.setdefault(connection.instance_id, connection)
        ready = tuple(by_instance.values())
        now_s = asyncio.get_running_loop().time()
        left = self._left | {one.address: (one, now_s) for one in self._ready if one not in ready}
        self._left = {address: (one, when_s) for address, (one, when_s) in left.items() if when_s + GRACE_S > now_s}
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


async def _leave(connection: Connection, task: asyncio.Task[None], waits_for_calls: bool) -> None:
    """End a connection once it is lost or has no more work."""

    def has_work() -> bool:
        return not connection.is_idle or (waits_for_calls and connection.num_other_calls > 0)

    try:
        while connection.is_connected and has_work():  # noqa: ASYNC110 - the last call's end has no event
            await asyncio.sleep(0.1)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def rendezvous(name: str, key: bytes) -> bytes:
    """The weight of a service for a key. The service with the highest weight owns the key."""
    return hashlib.sha256(name.encode() + key).digest()
