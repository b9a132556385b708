"""`triptych chat` in a terminal: Ctrl-C stops an answer, /reset starts anew, Ctrl-D ends."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from support.fakes.echo_frontend import echo_frontend

_COMMAND = ["setsid", "--ctty", "--wait", sys.executable, "-c", "from triptych_cli.main import app; app()", "chat", "--address"]


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


async def test_a_conversation() -> None:
    leader, follower = pty.openpty()
    terminal = Terminal(leader)
    async with asyncio.timeout(60), echo_frontend() as (frontend, address):
        with interruptible_children():
            process = await asyncio.create_subprocess_exec(
                *(*_COMMAND, address), stdin=follower, stdout=follower, stderr=follower, env={**os.environ, "TERM": "dumb"}
            )
        os.close(follower)
        await terminal.wait_for(r"fake — Ctrl-C stops an answer.*\n> ")
        terminal.type("for ever\n")
        await terminal.wait_for(r"for ever\s+for ever ")
        terminal.type("\x03")
        await frontend.cancelled.wait()
        await terminal.wait_for(r"> ")
        terminal.type("refuse me\n")
        await terminal.wait_for(r"error: messages\[0\] is not to my taste\s+> ")
        terminal.type("/reset\n")
        await terminal.wait_for(r"> ")
        terminal.type("hello\n")
        await terminal.wait_for(r"hello\s+hello \s+> ")
        terminal.type("\x04")
        assert await process.wait() == 0
    os.close(leader)
    assert frontend.turns(1) == [("user", "for ever"), ("assistant", "for ever "), ("user", "refuse me")]
    assert frontend.turns(2) == [("user", "hello")]
