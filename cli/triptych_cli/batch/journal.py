"""The output file, which is also the journal: a request is done when its line is written whole."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from triptych_cli.errors import CommandError


class Journal:
    """Appends lines to a file. Only one process can have it open.

    Args:
        path: an output of an earlier, interrupted run is continued. A last line that was not written whole is cut off.

    Raises:
        CommandError: another run writes to the file, or it is not the output of a batch.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise CommandError(f"cannot write {path}: {error.strerror}", exit_code=2) from error
        #: custom_id -> HTTP status of the requests that are done.
        self.done: dict[str, int] = {}
        try:
            self._lock()
            self._read()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            # The lock ends with the process, however that ends.
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CommandError(f"another run writes to {self._path}") from error

    def _read(self) -> None:
        num_bytes = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file, num_bytes)
                    break
                self._add(number, line)
                num_bytes += len(line)

    def _add(self, number: int, text: bytes) -> None:
        try:
            line = json.loads(text)
            custom_id, status = line["custom_id"], line["response"]["status_code"]
        except (ValueError, TypeError, KeyError) as error:
            raise CommandError(f"line {number} of {self._path} is not the output of a batch; choose another output file") from error
        if custom_id in self.done:
            raise CommandError(f"line {number} of {self._path}: custom_id {custom_id!r} is there twice")
        self.done[custom_id] = status

    def write(self, custom_id: str, status: int, line: dict) -> None:
        """Append a line, whole. It survives the end of this process, however that ends."""
        rest = memoryview(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        while rest:
            rest = rest[os.write(self._file, rest) :]
        self.done[custom_id] = status

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)
