"""Files that are replaced while the process runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from triptych.errors import StartupError

from triptych_common.rpc.security.certificates import Certificates, PemFiles

log = logging.getLogger(__name__)
#: Time between two looks at the files, in seconds.
INTERVAL_S = 2.0


class WatchedCertificates:
    """The certificates of a directory. They are loaded again when the files change, if the new ones pass all checks.

    Args:
        directory: of the files.
        read: returns their content.
        load: returns checked certificates. Both raise StartupError.

    Raises:
        StartupError: the certificates cannot be used.
    """

    def __init__(self, directory: Path, read: Callable[[], PemFiles], load: Callable[[], Certificates]) -> None:
        self.directory = directory
        self._read = read
        self._load = load
        self.current = load()
        self._failure = ""
        log.info("%s: the certificate is valid until %s", directory, utc(self.current.expiry_s))

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Look at the files until cancelled.

        Args:
            on_change: called on the event loop after each change of `current`.
        """
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                loaded = await asyncio.to_thread(self._changed)
            except StartupError as error:
                self._complain(f"{error.message}; the earlier certificate, valid until {utc(self.current.expiry_s)}, stays in use")
                continue
            except Exception:
                log.exception("unexpected error while the certificates in %s were read", self.directory)
                continue
            if loaded is not None:
                self.current, self._failure = loaded, ""
                log.info("%s: the certificate was renewed; it is valid until %s", self.directory, utc(loaded.expiry_s))
                on_change()
            elif time.time() > self.current.expiry_s:
                self._complain(f"{self.directory}: the certificate has expired; peers refuse new connections")

    def _changed(self) -> Certificates | None:
        return None if self._read() == self.current.files else self._load()

    def _complain(self, failure: str) -> None:
        if failure != self._failure:  # once, not at each look
            log.error("%s", failure)
        self._failure = failure


def utc(time_s: float) -> str:
    """A Unix time for people, to the minute."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
