"""What is on the other side of the step loop in the service: an event loop that makes a message of each step's outputs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self

from triptych.v1 import engine_pb2
from triptych_engine.load import Load
from triptych_engine.rpc.convert import load_message, output_message
from triptych_engine.rpc.outbox import Mailbox, Outbox
from triptych_engine.scheduling.output import SequenceOutput


class Outside:
    """An event loop on a thread of its own, an outbox and one session's mailbox; for the time of the block.

    Messages are made and encoded as EngineServicer.Session has it, and then dropped.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._outbox = Outbox(self._loop, lambda load: None)
        self._mailbox = Mailbox(self._outbox)

    def __enter__(self) -> Self:
        self._thread.start()
        self._reader: Future[None] = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._mailbox.end)
        self._reader.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def publish(self, step: int, outputs: Sequence[SequenceOutput], load: Load) -> None:
        """What the step loop calls."""
        self._outbox.publish(step, outputs, load)

    def expect(self, request_id: str) -> None:
        """Take a request's outputs."""
        self._call(partial(self._mailbox.expect, request_id, [request_id]))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Take no more of them."""
        for request_id in request_ids:
            self._call(partial(self._outbox.unroute, request_id))

    def _call(self, function: Callable[[], object]) -> None:
        async def call() -> None:
            function()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _read(self) -> None:
        while (taken := await self._mailbox.take()) is not None:
            step, outputs, load = taken
            message = engine_pb2.SessionResponse(
                step=step,
                outputs=[output_message(output, route.request_id, route.index) for route, output in outputs],
                load=load_message(load),
            )
            message.SerializeToString()
