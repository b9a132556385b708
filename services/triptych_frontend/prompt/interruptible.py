"""Work in a thread that another thread can end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """The job was interrupted. It is no Exception, so that no handler inside the work catches it."""


class InterruptibleJob(Generic[T]):
    """A callable for a pool of threads. `interrupt` ends it wherever it is.

    Python cannot kill a thread. A template that loops for ever would keep its thread, and the process could not end. CPython can
    raise an exception in another thread between two bytecodes. A call into C is not interrupted.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_interrupted = False

    def __call__(self) -> T:
        """Do the work. Raises Interrupted when it was interrupted."""
        with self._lock:
            if self._is_interrupted:  # while it waited for a thread
                raise Interrupted
            self._thread_id = threading.get_ident()
        try:
            return self._work()
        finally:
            # `interrupt` holds the lock, so it cannot raise the exception later, in the thread's next job.
            with self._lock:
                self._thread_id = None

    def interrupt(self) -> None:
        """End the job. Does nothing when the job is done. May be called from any thread."""
        with self._lock:
            self._is_interrupted = True
            if self._thread_id is not None:
                thread_id = ctypes.c_ulong(self._thread_id)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Interrupted))
