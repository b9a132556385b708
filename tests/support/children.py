"""Builders for supervised fake children, and a reporter that tests can wait on."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from triptych_cli.stack.supervisor import ServiceSpec

from support.fakes import child


def spec(directory: Path, name: str, behaviour: str = "", is_essential: bool = True) -> ServiceSpec:
    """A fake child that is ready when its socket accepts connections."""
    socket = directory / f"{name}.sock"

    async def is_ready() -> bool:
        _, writer = await asyncio.open_unix_connection(str(socket))
        writer.close()
        await writer.wait_closed()
        return True

    argv = [sys.executable, "-I", "-S", child.__file__, str(directory), name, behaviour]
    return ServiceSpec(name, argv, {"PATH": os.environ["PATH"]}, is_ready, is_essential)


async def tell_to_end(directory: Path, name: str, code: int) -> None:
    """Make a fake child exit with this code."""
    _, writer = await asyncio.open_unix_connection(str(directory / f"{name}.sock"))
    writer.write(str(code).encode())
    await writer.drain()
    writer.close()


def pids(directory: Path, name: str) -> list[int]:
    """Process ids of all children with this name, oldest first."""
    file = directory / f"{name}.pids"
    # A child that was killed before it could write has no file.
    return [int(line) for line in file.read_text().split()] if file.exists() else []


class RecordingReporter:
    """Keeps all events. `wait_for` blocks until an event has occurred."""

    def __init__(self) -> None:
        self.events: list[tuple] = []
        self.lines: list[tuple[str, str]] = []
        self.last_lines: list[str] = []
        self._changed = asyncio.Event()

    async def wait_for(self, *event: str, times: int = 1) -> None:
        """Wait until an event that starts with these parts has occurred this many times; at most half a minute."""
        async with asyncio.timeout(30):
            while sum(known[: len(event)] == event for known in self.events) < times:
                self._changed.clear()
                await self._changed.wait()

    def _add(self, *event: object) -> None:
        self.events.append(event)
        self._changed.set()

    def line(self, service: str, text: str) -> None:
        self.lines.append((service, text))

    def ready(self, service: str, elapsed_s: float) -> None:
        self._add("ready", service)

    def all_ready(self, elapsed_s: float) -> None:
        self._add("all ready")

    def died(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        self.last_lines = list(last_lines)
        self._add("died", service, how)

    def left_out(self, service: str, how: str, last_lines: Sequence[str]) -> None:
        self.last_lines = list(last_lines)
        self._add("left out", service, how)

    def stopping(self, service: str) -> None:
        self._add("stopping", service)

    def killed(self, service: str, grace_s: float) -> None:
        self._add("killed", service)
