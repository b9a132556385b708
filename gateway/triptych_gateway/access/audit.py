"""The audit log: who did what, as one JSON object per line. It has no prompts, no answers, no media and no keys."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
from triptych.errors import StartupError

log = logging.getLogger(__name__)
#: Lines that wait to be written at most.
_MAX_WAITING = 10_000
#: Longest wait for the last lines when the gateway stops, in seconds.
_CLOSE_TIMEOUT_S = 5.0
#: Time between two attempts to write, while that fails, in seconds.
_RETRY_S = 0.5


class AuditLog:
    """Appends lines to a file from a thread of its own, so that no request waits for a disk.

    A file that was moved away or deleted is made anew, so that it can be rotated. While lines cannot be written, for example
    because the disk is full, they wait. Those that find no room, and those that still wait at the end, are lost and counted.

    Args:
        target: path of the file, which only its owner may read; `-` is standard error.
        on_loss: called for each line that is lost, in any thread.

    Raises:
        StartupError: the file cannot be opened.
    """

    def __init__(self, target: str, on_loss: Callable[[], None]) -> None:
        self._target, self._on_loss = target, on_loss
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(_MAX_WAITING)
        self._failure = ""
        #: Lines that are not written yet; of the first one perhaps only its end.
        self._unwritten = b""
        self._is_closing = threading.Event()
        try:
            self._file: int | None = self._open()
        except OSError as error:
            raise StartupError(f"cannot write the audit log {target} ({error.strerror or error}); see --audit-log") from error
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def write(self, event: str, **fields: Any) -> None:
        """Queue a line."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        try:
            self._lines.put_nowait({"time": now, "event": event, **fields})
        except queue.Full:
            self._on_loss()

    def close(self) -> None:
        """Write the lines that wait, and close the file. May be called twice."""
        if not self._thread.is_alive():
            return
        self._is_closing.set()
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _open(self) -> int:
        if self._target == "-":
            return sys.stderr.fileno()
        return os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def _run(self) -> None:
        while self._read_lines():
            # What is left is tried again, while further lines wait in the queue.
            while not self._write_out() and not self._is_closing.wait(_RETRY_S):
                pass
        self._read_lines()
        if self._unwritten and not self._write_out():
            for _ in range(self._unwritten.count(b"\n")):
                self._on_loss()
        self._close_file()

    def _read_lines(self) -> bool:
        """Take all lines that wait, as one write; wait for the first. Returns False if the log is closing."""
        entries: list[dict[str, Any]] = []
        entry: dict[str, Any] | None = {}
        with contextlib.suppress(queue.Empty):
            while entry is not None and len(entries) < _MAX_WAITING:
                entry = self._lines.get(block=not entries and not self._is_closing.is_set())
                if entry is not None:
                    entries.append(entry)
        self._unwritten += b"".join(orjson.dumps(one) + b"\n" for one in entries)
        return not self._is_closing.is_set()

    def _write_out(self) -> bool:
        """Write what waits. Returns False if something is left."""
        try:
            if self._file is None or self._was_moved(self._file):
                self._close_file()
                self._file = self._open()
            while self._unwritten:
                # A full disk takes a part of it. The next attempt goes on where this one ended, so that no line is broken.
                self._unwritten = self._unwritten[os.write(self._file, self._unwritten) :]
        except OSError as error:
            if self._failure != (failure := error.strerror or str(error)):
                log.error("the audit log %s cannot be written: %s; %d lines can wait", self._target, failure, _MAX_WAITING)
                self._failure = failure
            return False
        if self._failure:
            log.info("the audit log %s is written again", self._target)
            self._failure = ""
        return True

    def _was_moved(self, file: int) -> bool:
        if self._target == "-":
            return False
        try:
            return not os.path.samestat(os.stat(self._target), os.fstat(file))
        except FileNotFoundError:
            return True

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._target != "-":
            with contextlib.suppress(OSError):
                os.close(file)
