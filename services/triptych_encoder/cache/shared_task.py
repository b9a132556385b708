"""A computation whose result several callers wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from triptych.errors import ServiceUnavailableError

T = TypeVar("T")
S = TypeVar("S")


class SharedTask(Generic[T]):
    """A task whose result is shared. It is cancelled when its last waiter is gone.

    Args:
        on_end: called once, when the task has ended or was cancelled, and before any waiter gets the result. No caller may join
            after it.
    """

    def __init__(self, work: Coroutine[Any, Any, T], on_end: Callable[[], None]) -> None:
        self._waiters: dict[asyncio.Future[Any], Callable[[T], Any]] = {}
        self._on_end: Callable[[], None] | None = on_end
        self._task = asyncio.create_task(work)
        self._task.add_done_callback(self._finish)

    async def join(self, claim: Callable[[T], S]) -> S:
        """Wait for the result, and return what `claim` makes of it.

        Args:
            claim: called with the result as soon as it exists, if this caller still waits for it. `join` raises what `claim`
                raises.

        Raises:
            ServiceUnavailableError: the task was cancelled.
        """
        waiter: asyncio.Future[S] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = claim
        try:
            return await waiter
        finally:
            self._waiters.pop(waiter, None)
            if not self._waiters and not self._task.done():
                self.cancel()

    def cancel(self) -> None:
        """Cancel the task. Its waiters get a ServiceUnavailableError."""
        self._end()
        self._task.cancel()

    def _end(self) -> None:
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end()

    def _finish(self, task: asyncio.Task[T]) -> None:
        self._end()
        error = ServiceUnavailableError("the encoder is stopping") if task.cancelled() else task.exception()
        for waiter, claim in list(self._waiters.items()):
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
                continue
            try:
                waiter.set_result(claim(task.result()))
            except Exception as refused:
                waiter.set_exception(refused)
