"""What is on the other side of the step loop in the service: an event loop that makes a message of each step's outputs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Self, TypeVar

from triptych_common.pb import engine_pb2
from triptych_engine.core import Load
from triptych_engine.rpc.convert import load_message, output_message
from triptych_engine.rpc.outbox import Mailbox, Outbox
from triptych_engine.scheduling.output import SequenceOutput

T = TypeVar("T")


class Outside:
    """An event loop on a thread of its own, an outbox and one session's mailbox; for the time of the block.

    Messages are made and encoded as EngineServicer.Session has it, and then dropped.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._outbox = Outbox(self._loop, lambda load: None)
        self._mailbox = Mailbox(self._outbox)
        self._ns = self._num_messages = 0

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
        self._call(lambda: self._mailbox.expect(request_id))

    def forget(self, request_ids: Iterable[str]) -> None:
        """Take no more of them."""

        def forget() -> None:
            for request_id in request_ids:
                self._outbox.unroute(request_id)

        self._call(forget)

    def take_times(self) -> tuple[float, int]:
        """Milliseconds that went into messages since the last call, and how many there were."""

        def take() -> tuple[float, int]:
            taken = self._ns / 1e6, self._num_messages
            self._ns = self._num_messages = 0
            return taken

        return self._call(take)

    def _call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    async def _read(self) -> None:
        while (taken := await self._mailbox.take()) is not None:
            started_ns = time.perf_counter_ns()
            step, outputs, load = taken
            message = engine_pb2.SessionResponse(step=step, outputs=map(output_message, outputs), load=load_message(load))
            message.SerializeToString()
            self._ns += time.perf_counter_ns() - started_ns
            self._num_messages += 1
