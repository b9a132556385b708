"""The audit log: who did what, as one JSON object per line. It has no prompts, no answers, no media and no keys."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import IO, Any

import orjson
from triptych.errors import StartupError

log = logging.getLogger(__name__)
#: Lines that wait to be written at most.
_MAX_WAITING = 10_000
#: Longest wait for the last lines when the gateway stops, in seconds.
_CLOSE_TIMEOUT_S = 5.0


class AuditLog:
    """Appends lines to a file from a thread of its own, so that no request waits for a disk.

    A file that was moved away or deleted is made anew, so that it can be rotated. Lines that cannot be written, or that come faster
    than they are written, are lost and counted.

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
        self._file: IO[bytes] | None = None
        try:
            self._file = self._open()
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
        try:
            self._lines.put(None, timeout=_CLOSE_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_TIMEOUT_S)

    def _open(self) -> IO[bytes]:
        if self._target == "-":
            return sys.stderr.buffer
        return open(os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")

    def _run(self) -> None:
        entry: dict[str, Any] | None = {}
        while entry is not None:
            entries = []
            # All that wait are one write.
            while (entry := self._lines.get()) is not None:
                entries.append(entry)
                if self._lines.empty() or len(entries) >= _MAX_WAITING:
                    break
            if entries:
                self._write(entries)
        self._close_file()

    def _write(self, entries: list[dict[str, Any]]) -> None:
        try:
            if self._file is None or self._was_moved(self._file):
                self._close_file()
                self._file = self._open()
            self._file.write(b"".join(orjson.dumps(entry) + b"\n" for entry in entries))
            self._file.flush()
            self._failure = ""
        except OSError as error:
            if self._failure != (failure := error.strerror or str(error)):
                log.error("lines of the audit log %s are lost: %s", self._target, failure)
                self._failure = failure
            self._close_file()
            for _ in entries:
                self._on_loss()

    def _was_moved(self, file: IO[bytes]) -> bool:
        if self._target == "-":
            return False
        try:
            return not os.path.samestat(os.stat(self._target), os.fstat(file.fileno()))
        except FileNotFoundError:
            return True

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None and self._target != "-":
            try:
                file.close()
            except OSError:
                log.debug("the audit log could not be closed", exc_info=True)
