"""The terminal of a program, for tests that type and read."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Terminal:
    """The other end of a program's terminal."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.seen = ""

    async def wait_for(self, pattern: str) -> None:
        """Read until a pattern was seen after the last one."""
        while (match := re.search(pattern, self.seen)) is None:
            self.seen += (await asyncio.to_thread(os.read, self._descriptor, 4096)).decode()
        self.seen = self.seen[match.end() :]

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


@contextmanager
def interruptible_children() -> Iterator[None]:
    """Tests that were started in the background of a shell ignore SIGINT, and so would their children.

    Not by a preexec_fn, which would make the child by fork, of which gRPC's server in this process takes notice.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
