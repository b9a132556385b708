"""An event loop in a thread of its own, and a window of jobs that run on it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import os
import queue
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from triptych.errors import RequestAbortedError

T = TypeVar("T")

_CLOSED = "requests cannot be sent: this object was closed"


class LoopThread:
    """Runs an event loop in a daemon thread until `close`."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="triptych-offline", daemon=True)
        self._thread.start()
        self._lock = threading.Lock()
        self._is_closed = False
        self._pid = os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on the loop, and so must not wait for it."""
        return threading.current_thread() is self._thread

    @contextlib.contextmanager
    def _kept_open(self) -> Iterator[None]:
        """Hold off `close`. Raises RequestAbortedError after it, and RuntimeError in a fork.

        A fork has a copy of this object, but not the thread. It would wait forever.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(
                "requests cannot be sent: this process is a fork of the one that made this object; "
                "make the object in the process that uses it, which multiprocessing starts by 'spawn'"
            )
        with self._lock:
            if self._is_closed:
                raise RequestAbortedError(_CLOSED)
            yield

    def call(self, function: Callable[[], object]) -> None:
        """Call a function on the loop, soon. Raises RequestAbortedError after `close`, and RuntimeError in a fork."""
        with self._kept_open():
            self._loop.call_soon_threadsafe(function)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the loop. The calling thread waits. Raises what `call` raises."""
        try:
            with self._kept_open():
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise RequestAbortedError(_CLOSED) from error

    def close(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """End the loop and its thread. Tasks that are left are cancelled, then `last` is run."""
        with self._lock:
            if self._is_closed:
                return
            # What was called before runs before `_end`, which cancels its tasks.
            self._is_closed = True
        try:
            asyncio.run_coroutine_threadsafe(_end(last), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _end(last: Callable[[], Coroutine[Any, Any, object]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await last()


@dataclass(frozen=True)
class Job(Generic[T]):
    """Something to do on the loop.

    Args:
        start: called on the loop's thread.
        num_bytes: memory that the job holds while it runs.
    """

    start: Callable[[], Coroutine[Any, Any, T]]
    num_bytes: int


@dataclass(frozen=True)
class Window:
    """How many jobs run at the same time: as many as fit both limits, but at least one."""

    max_jobs: int
    max_bytes: int

    def run(self, loop: LoopThread, jobs: Iterable[Job[T]]) -> Generator[tuple[int, asyncio.Task[T]], None, None]:
        """Run jobs, and yield their indices and ended tasks in the order in which they end.

        The next job is taken from `jobs`, in the calling thread, when the window has room for it. When the generator is closed, or
        `jobs` raises an error, the jobs that run are cancelled, and have ended before the generator has.
        """
        ended: queue.SimpleQueue[tuple[int, asyncio.Task[T]]] = queue.SimpleQueue()
        running: dict[int, int] = {}
        tasks: dict[int, asyncio.Task[T]] = {}

        def start(index: int, job: Job[T]) -> None:
            tasks[index] = task = asyncio.create_task(job.start())
            task.add_done_callback(functools.partial(end, index))

        def end(index: int, task: asyncio.Task[T]) -> None:
            del tasks[index]
            # Nobody may read the error of this one, if that of another one is raised. asyncio would log it.
            if not task.cancelled():
                task.exception()
            ended.put((index, task))

        async def cancel() -> None:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

        numbered, num_bytes = enumerate(jobs), 0
        more = True
        try:
            while more or running:
                if more and (not running or (len(running) < self.max_jobs and num_bytes < self.max_bytes)):
                    index, job = next(numbered, (0, None))
                    if job is None:
                        more = False
                        continue
                    running[index] = job.num_bytes
                    num_bytes += job.num_bytes
                    loop.call(lambda index=index, job=job: start(index, job))  # type: ignore[misc]
                    if ended.empty():
                        continue
                index, task = ended.get()
                num_bytes -= running.pop(index)
                yield index, task
        finally:
            # After Ctrl-C nothing is certain about `running` and `ended`, because it comes between any two instructions.
            if running:
                # A closed loop has cancelled all tasks.
                with contextlib.suppress(RequestAbortedError):
                    loop.run(cancel())
