"""Runs a function with a deep stack."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
#: Bytes of address space; memory is used only as far as the stack grows.
_STACK_BYTES = 512 << 20
_lock = threading.Lock()


def with_deep_stack(function: Callable[[], T]) -> T:
    """Call a function on a thread of its own, and wait for it.

    llguidance compiles by recursion, and a schema may refer from each definition to the next one. A thousand of them overflow a
    stack of usual size, which ends the process. This stack suffices for every text of MAX_CONSTRAINT_BYTES.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    with _lock:
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="constraint")
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    return future.result()
