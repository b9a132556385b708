"""Changing a file of keys: one writer at a time, and readers see the old file or the new one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from triptych_gateway.access.keys import KeyFile, KeyFileError, parse_key_file, read_key_file

from triptych_cli.errors import CommandError
from triptych_cli.replacing import keep_owner_and_mode


def load(path: Path, *, may_be_missing: bool = False) -> KeyFile:
    """The keys in a file.

    Args:
        may_be_missing: a file that is not there has no keys.

    Raises:
        CommandError: it cannot be read, or is wrong.
    """
    try:
        return parse_key_file(read_key_file(path))
    except FileNotFoundError as error:
        if may_be_missing:
            return KeyFile(version=1, keys=[])
        raise CommandError(f"there is no file {path}; `triptych keys create` makes it") from error
    except (OSError, KeyFileError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise CommandError(f"cannot use {path}: {reason}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Path]:
    """Keep other commands from changing the file. Yields the file itself, if the path is a link. Raises CommandError."""
    target = path.resolve()
    lock_path = target.with_name(f".{target.name}.lock")
    try:
        # The file itself is replaced, so it cannot be the lock.
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CommandError(f"cannot write to {target.parent}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield target
    finally:
        os.close(lock)


def replace(path: Path, content: KeyFile) -> None:
    """Write the file. A new one only its owner may read. One that was there keeps its owner and its mode.

    Raises:
        CommandError: it cannot be written, or its owner cannot be kept. The old file stays.
    """
    text = content.model_dump_json(indent=2, exclude_defaults=True).encode() + b"\n"
    written = ""
    try:
        descriptor, written = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # has the mode 0600
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        keep_owner_and_mode(Path(written), path)
        os.replace(written, path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from error
    finally:
        if written:
            # Is not there any more, if all went well.
            Path(written).unlink(missing_ok=True)
