"""`triptych chat` in a terminal: Ctrl-C stops an answer, /reset starts anew, a turn may have several lines, Ctrl-D ends."""

from __future__ import annotations

import asyncio
import os
import pty
import sys

from support.fakes.echo_frontend import echo_frontend
from support.terminal import Terminal, interruptible_children

_COMMAND = ["setsid", "--ctty", "--wait", sys.executable, "-c", "from triptych_cli.main import app; app()", "chat", "--address"]


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
        terminal.type("/what\n")
        await terminal.wait_for(r"error: unknown command /what; /help lists all\s+> ")
        terminal.type('"""\nhello\nyou"""\n')
        await terminal.wait_for(r"hello you \s+.*7 \+ 11 tokens, 100 tokens/s.*\s+> ")
        terminal.type("\x04")
        assert await process.wait() == 0
    os.close(leader)
    assert frontend.turns(1) == [("user", "for ever"), ("assistant", "for ever "), ("user", "refuse me")]
    assert frontend.turns(2) == [("user", "hello\nyou")]
