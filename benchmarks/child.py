"""A program that runs beside the benchmark and ends with it, however that ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Self

from triptych_cli.stack import tether

#: Time to end after SIGTERM, in seconds; then comes SIGKILL. The supervisor gives its services 15.
STOP_GRACE_S = 30.0
#: Lines that nobody has waited for yet; older ones are forgotten.
_MAX_LINES = 10_000
_NUM_LAST_LINES = 40


class ChildError(Exception):
    """A child did not do what it was started for."""


class Child:
    """A running program whose output is searched line by line; ends with the block, and (on Linux) with this process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.started_s = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=dict(env),
            # A terminal's Ctrl-C is this process's alone, which then ends the child.
            start_new_session=True,
        )
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._ended = False
        self._grown = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """The next line that matches; those before it are passed over. Raises ChildError when none comes in time."""
        deadline_s = time.monotonic() + timeout_s
        with self._grown:
            while True:
                while self._lines:
                    if match := re.search(pattern, self._lines.popleft()):
                        return match
                left_s = deadline_s - time.monotonic()
                if self._ended or left_s <= 0:
                    why = "it ended" if self._ended else f"nothing for {timeout_s:.0f} s"
                    raise ChildError(f"waited for {pattern!r}: {why}; its last lines:\n" + "\n".join(self._last_lines))
                self._grown.wait(left_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(STOP_GRACE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._grown:
                self._lines.append(line.rstrip())
                self._last_lines.append(line.rstrip())
                self._grown.notify_all()
        with self._grown:
            self._ended = True
            self._grown.notify_all()
