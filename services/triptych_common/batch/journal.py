"""The output file, which is also the journal: a request is done when its line is written whole."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import uuid
from pathlib import Path
from typing import Any

#: How the id of each line begins, and with it the line.
ID_PREFIX = "batch_req_"
_LINE_PREFIX = b'{"id": "' + ID_PREFIX.encode()
#: Lone surrogates, which UTF-8 cannot hold, and what ends a line for str.splitlines.
_ESCAPED = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


class JournalError(Exception):
    """A journal cannot be used. The message names the file."""


class UnusableFileError(JournalError):
    """The file cannot be opened, or is no regular file."""


class BusyError(JournalError):
    """Another process has the journal open."""


class Journal:
    """Appends lines to a file. Only one process can have it open. Not thread-safe.

    Args:
        path: an output of an earlier, interrupted run is continued. A last line that was not written whole is cut off.

    Raises:
        JournalError: the file cannot be written, another run writes to it, or it is not the output of a batch. It is left as it is
            then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise UnusableFileError(f"cannot write {path}: {error.strerror}") from error
        #: custom_id -> HTTP status of the requests that are done.
        self.done: dict[str, int] = {}
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UnusableFileError(f"{path} is not a regular file; the output is read when a run is continued")
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
            raise BusyError(f"another run writes to {self._path}") from error

    def _read(self) -> None:
        num_bytes = 0
        with open(self._file, "rb", closefd=False) as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n") and _is_torn(line):
                    os.ftruncate(self._file, num_bytes)
                    break
                if line.strip():
                    self._add(number, line)
                if not line.endswith(b"\n"):
                    # An editor took the end away.
                    self._append(b"\n")
                num_bytes += len(line)

    def _add(self, number: int, text: bytes) -> None:
        try:
            line = json.loads(text)
            custom_id, status = line["custom_id"], line["response"]["status_code"]
            if not (isinstance(custom_id, str) and custom_id and isinstance(status, int)):
                raise ValueError("no custom_id or status")
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            message = f"line {number} of {self._path} is not the output of a batch; choose another output file"
            raise JournalError(message) from error
        if custom_id in self.done:
            raise JournalError(f"line {number} of {self._path}: custom_id {custom_id!r} is there twice")
        self.done[custom_id] = status

    def write(self, custom_id: str, status: int, line: dict[str, Any]) -> None:
        """Append a line, whole. It survives the end of this process, however that ends. Raises JournalError if the disk is full."""
        self._append(encoded(line))
        self.done[custom_id] = status

    def _append(self, data: bytes) -> None:
        num_bytes = os.fstat(self._file).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            # A further line must not follow the beginning of this one.
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, num_bytes)
            raise JournalError(f"cannot write {self._path}: {error.strerror}") from error

    def close(self) -> None:
        """Release the file. Another process can open it then."""
        os.close(self._file)


def output_line(custom_id: str, status: int, request_id: str, body: object) -> dict[str, Any]:
    """The line of a request that was answered."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": new_line_id(), "custom_id": custom_id, "response": response, "error": None}


def new_line_id() -> str:
    """The id of a line of output."""
    return f"{ID_PREFIX}{uuid.uuid4().hex}"


def encoded(line: dict[str, Any]) -> bytes:
    """A line of output as text, with its end."""
    text = _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))
    return text.encode() + b"\n"


def _is_torn(line: bytes) -> bool:
    """Whether a last line without an end is one that a kill cut. Nothing else may be cut off: the file may not be a batch's."""
    if not (line.startswith(_LINE_PREFIX) or _LINE_PREFIX.startswith(line)):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False
