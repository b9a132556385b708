"""Work in a thread that another thread can interrupt."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """The job was interrupted. This is not an Exception, so that no handler inside the work catches it."""


class InterruptibleJob(Generic[T]):
    """A callable for a thread pool. `interrupt` ends it at any point.

    Python cannot kill a thread. A template with an endless loop would keep its thread, and the process could not exit. But CPython
    can raise an exception in another thread between two bytecodes. It cannot interrupt a call into C.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_interrupted = False

    def __call__(self) -> T:
        """Do the work. Raises Interrupted when it was interrupted."""
        with self._lock:
            if self._is_interrupted:  # before the job got a thread
                raise Interrupted
            self._thread_id = threading.get_ident()
        try:
            return self._work()
        finally:
            # `interrupt` holds the same lock, so it cannot raise the exception later, in the thread's next job.
            with self._lock:
                self._thread_id = None

    def interrupt(self) -> None:
        """End the job. Does nothing if the job is done. May be called from any thread."""
        with self._lock:
            self._is_interrupted = True
            if self._thread_id is not None:
                thread_id = ctypes.c_ulong(self._thread_id)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Interrupted))
