"""One child process: its start, its output line by line, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

#: How many of a child's last lines are kept for the report after it dies.
NUM_LAST_LINES = 20
#: Longer lines are cut here, in bytes.
MAX_LINE_BYTES = 16 * 1024
_TETHER = str(Path(__file__).with_name("tether.py"))
_LINE_END = re.compile(rb"\r\n|\n|\r")
#: Longest time to read the rest of a dead child's output, in seconds.
_DRAIN_S = 1.0


class ChildProcess:
    """A running program whose standard output and error are read as lines.

    It leads its own session, so that a terminal's Ctrl-C reaches only the supervisor. It dies with the supervisor.

    Args:
        on_line: called with each line, without the line end, as soon as it is complete.
    """

    def __init__(self, process: asyncio.subprocess.Process, output: int, on_line: Callable[[str], None]) -> None:
        self._process = process
        self._on_line = on_line
        self._last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._reader = asyncio.create_task(self._read(output))
        self._end = asyncio.create_task(self._await_end())

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str], on_line: Callable[[str], None]) -> ChildProcess:
        """Start a program.

        Args:
            env: the whole environment of the program.
        """
        # Not asyncio's own pipe: with it `wait` returns only when the pipe is closed, and a grandchild may keep it open forever.
        output, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", _TETHER, str(os.getpid()), *argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=dict(env),
                start_new_session=True,
            )
        except BaseException:
            os.close(output)
            raise
        finally:
            os.close(write_end)
        return cls(process, output, on_line)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def last_lines(self) -> list[str]:
        """The last lines of the output, oldest first."""
        return list(self._last_lines)

    async def wait(self) -> int:
        """Wait for the end of the process and of its output. Returns the exit code, or minus the signal's number."""
        return await asyncio.shield(self._end)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its children at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            self._signal_group(number)

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    async def _await_end(self) -> int:
        code = await self._process.wait()
        # Remaining child processes are in the same process group.
        self._signal_group(signal.SIGKILL)
        await asyncio.wait([self._reader], timeout=_DRAIN_S)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        return code

    async def _read(self, output: int) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(output, "rb", buffering=0)
        )
        with contextlib.closing(transport):
            rest = b""
            while chunk := await stream.read(MAX_LINE_BYTES):
                *lines, rest = _LINE_END.split(rest + chunk)
                if len(rest) > MAX_LINE_BYTES:
                    lines.append(rest)
                    rest = b""
                for line in lines:
                    self._emit(line)
            self._emit(rest)

    def _emit(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()
        if text:
            self._last_lines.append(text)
            self._on_line(text)


def describe_exit(code: int) -> str:
    """An exit code as text: `exit code 1` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
