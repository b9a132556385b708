"""Python's garbage collector, in processes whose libraries make a million objects that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def objects_that_stay() -> Iterator[None]:
    """What is made inside, by imports above all, is never looked at by the collector.

    Importing torch and transformers takes a sixth less time so, and no full collection goes through what they made: 0.4 s, in
    the middle of a step. For entry points of processes only: garbage that is there at the end stays, too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
