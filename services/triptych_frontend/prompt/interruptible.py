"""Work in a thread that can be ended from outside."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Interrupted(BaseException):
    """The job was ended. No Exception, so that no handler inside the work takes it for one of its own errors."""


class InterruptibleJob(Generic[T]):
    """A callable for a pool of threads; `interrupt` ends it wherever it is.

    Python has no way to kill a thread, and a template that loops for ever would hold one, and with it the end of the process.
    CPython can raise an exception in another thread, between two bytecodes; a call into C is not cut short.
    """

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._is_interrupted = False

    def __call__(self) -> T:
        """Do the work. Raises Interrupted when it was ended."""
        with self._lock:
            if self._is_interrupted:  # while it waited for a thread
                raise Interrupted
            self._thread_id = threading.get_ident()
        try:
            return self._work()
        finally:
            # Whoever interrupts holds the lock, so the exception cannot strike after this, in the thread's next job.
            with self._lock:
                self._thread_id = None

    def interrupt(self) -> None:
        """End the job; does nothing once it is done. May be called from any thread."""
        with self._lock:
            self._is_interrupted = True
            if self._thread_id is not None:
                thread_id = ctypes.c_ulong(self._thread_id)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread_id, ctypes.py_object(Interrupted))
