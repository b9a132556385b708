"""Inputs of many tasks in few calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from triptych.errors import ServiceUnavailableError, StartupError, TriptychError

Input = TypeVar("Input")
Result = TypeVar("Result")

#: Most inputs of a call, and most calls at the same time. While all calls are under way, the next ones fill.
_MAX_INPUTS, _MAX_CALLS = 32, 4


class Batcher(Generic[Input, Result]):
    """Sends inputs together. All methods belong to one event loop.

    Args:
        send: a call with one or more inputs, which returns as many results.
    """

    def __init__(self, send: Callable[[Sequence[Input]], Awaitable[Sequence[Result]]]) -> None:
        self._send = send
        self._waiting: dict[asyncio.Future[Result], Input] = {}
        self._senders: set[asyncio.Task[None]] = set()

    async def ask(self, one: Input) -> Result:
        """The result of one input. A fault of one input is no fault of those that were sent with it. Raises TriptychError."""
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[future] = one
        if len(self._senders) < _MAX_CALLS:
            sender = asyncio.create_task(self._send_all())
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
        try:
            return await future
        finally:
            self._waiting.pop(future, None)

    async def _send_all(self) -> None:
        # Those who ask in the same turn of the loop come along.
        await asyncio.sleep(0)
        while self._waiting:
            batch = {future: self._waiting.pop(future) for future in list(self._waiting)[:_MAX_INPUTS]}
            try:
                await self._send_together(batch)
            except TriptychError as error:
                # These errors are no input's own, and the call has waited for the services already.
                if len(batch) == 1 or isinstance(error, (ServiceUnavailableError, StartupError)):
                    _fail(batch, error)
                    continue
                for future, one in batch.items():
                    try:
                        await self._send_together({future: one})
                    except TriptychError as own:
                        _fail([future], own)
            except Exception as error:
                _fail(batch, error)

    async def _send_together(self, batch: Mapping[asyncio.Future[Result], Input]) -> None:
        """One call. It is cancelled when nobody waits for any of its results."""
        call = asyncio.ensure_future(self._send([*batch.values()]))

        def on_done(_: object) -> None:
            if all(future.cancelled() for future in batch):
                call.cancel()

        for future in batch:
            future.add_done_callback(on_done)
        await asyncio.wait([call])
        if call.cancelled():
            return
        for future, result in zip(batch, call.result(), strict=True):
            if not future.done():
                future.set_result(result)


def _fail(futures: Iterable[asyncio.Future[Result]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)
