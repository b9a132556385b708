"""Chooses a service for each request, and another one if the first is lost or refuses before it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from triptych.errors import InternalError, QueueFullError, ServiceUnavailableError, TriptychError

from triptych_common.cluster.connection import Connection
from triptych_common.cluster.pool import Pool

log = logging.getLogger(__name__)
C = TypeVar("C", bound=Connection)
C_contra = TypeVar("C_contra", bound=Connection, contravariant=True)
T = TypeVar("T")
#: Errors that another service may not have.
RETRYABLE = (ServiceUnavailableError, QueueFullError)
#: A request with a key goes to the service that owns the key, which may hold what the request needs. But if that one's load is more
#: than this number plus twice the least load, the request goes to the least loaded service.
_MAX_STICKY_LOAD = 8


@dataclass(frozen=True)
class Demand(Generic[C]):
    """What a request asks of the service that takes it."""

    #: Whether a service can take it, e.g. because it has the request's model.
    suits: Callable[[C], bool] = lambda service: True
    #: What the request has in common with earlier ones, e.g. a picture.
    key: bytes | None = None
    #: Chooses among those that can; by default that with the least load.
    pick: Callable[[Sequence[C]], C] | None = None


class Placeable(Protocol[C_contra]):
    """A call that a router sends to a service, and to another one where the first did not do."""

    #: Instances that it was sent to.
    tried: set[str]

    @property
    def is_live(self) -> bool:
        """Whether anybody still waits for it."""
        ...

    async def send_to(self, service: C_contra) -> None:
        """Send the call. Raises TriptychError; another service is tried if the error is retryable."""
        ...

    def fail(self, error: TriptychError) -> None:
        """End the call with an error."""
        ...


class Router(Generic[C]):
    """Sends calls to the services of a pool."""

    def __init__(self, pool: Pool[C]) -> None:
        self._pool = pool
        #: Calls that are on their way to a service.
        self._placing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def close(self) -> None:
        """End the waits for services, with their calls."""
        self._is_closed = True
        for task in self._placing:
            task.cancel()
        await asyncio.gather(*self._placing, return_exceptions=True)

    def suiting(self, demand: Demand[C], tried: Set[str]) -> Callable[[C], bool]:
        """Whether a service can take a request that was sent to these instances."""
        may_try = self._pool.may_try_another(tried)
        return lambda service: may_try and service.instance_id not in tried and demand.suits(service)

    def choose(self, demand: Demand[C], tried: Set[str] = frozenset()) -> C | None:
        """The service for a request; None when there is none.

        Args:
            tried: instances that are not chosen.
        """
        suits = self.suiting(demand, tried)
        least = self._pool.least_loaded(suits, demand.pick)
        if least is None or demand.key is None:
            return least
        own = next(filter(suits, self._pool.ranked(demand.key)), least)
        return least if own.is_doubtful or own.load > _MAX_STICKY_LOAD + 2 * least.load else own

    def grace_left_s(self, demand: Demand[C], tried: Set[str] = frozenset(), error: TriptychError | None = None) -> float:
        """How long a request that finds no service should wait, as `Pool.grace_left_s`; 0 once this router is closed."""
        return 0.0 if self._is_closed else self._pool.grace_left_s(tried, error, demand.suits)

    async def until_there(self) -> None:
        """Wait for a service, but only if there was one a moment ago, as in a rolling restart."""
        if not self._pool.ready:
            await self._pool.until(lambda: bool(self._pool.ready), self.grace_left_s(Demand()))

    def none_left(self) -> ServiceUnavailableError:
        """The error of a request that finds no service."""
        return self._pool.none_left()

    async def next(self, demand: Demand[C], tried: set[str], error: TriptychError | None = None, *, waits: bool = True) -> C | None:
        """Choose a service, and add it to those that were tried. None if there is none.

        Args:
            error: why the last one did not do.
            waits: for a service that was not tried, if one was there a moment ago.
        """
        while (service := self.choose(demand, tried)) is None:
            left_s = self.grace_left_s(demand, tried, error) if waits else 0.0
            if left_s <= 0 or not await self._pool.until(lambda: self.choose(demand, tried) is not None, left_s):
                return None
        tried.add(service.instance_id)
        return service

    async def ask(self, demand: Demand[C], call: Callable[[C], Awaitable[T]], *, waits: bool = True) -> T:
        """The answer to a unary call of the first service that gives one.

        Args:
            waits: see `next`.

        Raises:
            TriptychError: of the last service that was asked, or there was none.
        """
        tried: set[str] = set()
        error: TriptychError | None = None
        while (service := await self.next(demand, tried, error, waits=waits)) is not None:
            try:
                with service.in_use():
                    return await call(service)
            except RETRYABLE as failure:
                error = failure
        raise error or self.none_left()

    def place_again(self, call: Placeable[C], demand: Demand[C], error: TriptychError | None) -> asyncio.Task[None] | None:
        """Send a call to another service. None if there is none, and none is expected.

        Args:
            error: why the last one did not do.
        """
        if self.choose(demand, call.tried) is None and self.grace_left_s(demand, call.tried, error) <= 0:
            return None
        task = asyncio.create_task(self.place(call, demand, error), name="a call to another service")
        self._placing.add(task)
        task.add_done_callback(self._placing.discard)

        def end(task: asyncio.Task[None]) -> None:
            if task.cancelled() and call.is_live:  # perhaps before it began
                call.fail(error or self.none_left())

        task.add_done_callback(end)
        return task

    async def place(self, call: Placeable[C], demand: Demand[C], error: TriptychError | None = None) -> None:
        """Send a call to a service. If none is left, fail it with the error of the last one that was tried."""
        try:
            while call.is_live:
                service = await self.next(demand, call.tried, error)
                if service is None or not call.is_live:
                    break
                if error is not None:
                    log.info("a call goes to the %s at %s: %s", service.kind, service.address, error)
                try:
                    await call.send_to(service)
                    return
                except RETRYABLE as failure:
                    error = failure
            if call.is_live:
                call.fail(error or self.none_left())
        except TriptychError as failure:
            call.fail(failure)
        except Exception as failure:
            # This may run in a background task. Nobody else would end the call.
            log.exception("unexpected error")
            call.fail(InternalError(f"internal error ({type(failure).__name__}); the log has the details"))
