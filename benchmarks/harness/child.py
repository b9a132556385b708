"""A program that runs beside the benchmark and ends with it, however that ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from triptych_cli.stack import tether

from benchmarks.errors import BenchmarkError

#: Time to end after SIGTERM, in seconds; then comes SIGKILL. The supervisor gives its services 15.
STOP_GRACE_S = 30.0
_POLL_S = 0.02
_NUM_LAST_LINES = 40


class Child:
    """A running program whose output is searched line by line; ends with the block, and (on Linux) with this process."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.started_s = time.perf_counter()
        self._output = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by __exit__
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *argv],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            # A terminal's Ctrl-C is this process's alone, which then ends the child.
            start_new_session=True,
        )
        self._num_read = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, pattern: str, timeout_s: float) -> re.Match[str]:
        """The next line that matches; those before it are passed over. Raises BenchmarkError when none comes in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            has_ended = self._process.poll() is not None
            for line in self._new_lines():
                if match := re.search(pattern, line):
                    return match
            if has_ended or time.monotonic() > deadline_s:
                why = "it ended" if has_ended else f"nothing for {timeout_s:.0f} s"
                raise BenchmarkError(f"waited for {pattern!r}: {why}; its last lines:\n{self._last_lines()}")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._output.close()

    def _new_lines(self) -> Iterator[str]:
        """Whole lines that nobody has taken yet; what is not iterated over stays."""
        for line in self._read(self._num_read).splitlines(keepends=True):
            if line.endswith(b"\n"):
                self._num_read += len(line)
                yield line.decode(errors="replace").rstrip()

    def _last_lines(self) -> str:
        return "\n".join(self._read(0).decode(errors="replace").splitlines()[-_NUM_LAST_LINES:])

    def _read(self, begin: int) -> bytes:
        """All output from there on. The child shares the file's position, which must therefore not be moved."""
        descriptor = self._output.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size - begin, begin)
