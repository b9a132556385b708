"""Announced keys: their files are about to be sent, so fetches of these keys wait."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field

#: Most announcements that are kept. The oldest is dropped first.
_MAX_ANNOUNCED = 65_536


@dataclass
class _Announcement:
    until_s: float = 0.0
    #: Callers that were asked to send the file and whose file was not refused since.
    num_senders: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Announcements:
    """Keeps the keys whose files callers were asked to send. Use it on the event loop only."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, _Announcement] = OrderedDict()

    def announce(self, key: bytes, for_s: float) -> None:
        """Note that one more caller was asked for the key's file, which should arrive within `for_s` seconds."""
        announcement = self._by_key.setdefault(key, _Announcement())
        announcement.until_s = time.monotonic() + for_s
        announcement.num_senders += 1
        self._by_key.move_to_end(key)
        if len(self._by_key) > _MAX_ANNOUNCED:
            self._forget(*next(iter(self._by_key.items())))

    def withdraw(self, key: bytes) -> None:
        """Note that one caller's file arrived and was refused. Waiting fetches fail if no other caller was asked for the file."""
        announcement = self._by_key.get(key)
        if announcement is not None:
            announcement.num_senders -= 1
            if announcement.num_senders <= 0:
                self._forget(key, announcement)

    def withdraw_all(self) -> None:
        """Note that no files will be accepted any more."""
        for key, announcement in list(self._by_key.items()):
            self._forget(key, announcement)

    def fulfil(self, key: bytes) -> None:
        """Note that the file was accepted. Fetches that wait for it continue."""
        announcement = self._by_key.pop(key, None)
        if announcement is not None:
            announcement.changed.set()

    async def wait_for(self, key: bytes) -> bool:
        """Wait until the file of an announced key was accepted, or until the announcement was withdrawn.

        Returns:
            True if the caller should look for the key again. False if the key is not announced, or if its file did not arrive in
            time.
        """
        announcement = self._by_key.get(key)
        if announcement is None:
            return False
        left_s = announcement.until_s - time.monotonic()
        if left_s <= 0:
            self._forget(key, announcement)
            return False
        try:
            async with asyncio.timeout(left_s):
                await announcement.changed.wait()
        except TimeoutError:
            # The file may have arrived in the same iteration of the event loop, or the key may have been announced again.
            if not announcement.changed.is_set() and announcement.until_s <= time.monotonic():
                self._forget(key, announcement)
                return False
        return True

    def _forget(self, key: bytes, announcement: _Announcement) -> None:
        """Remove an announcement. Wake its other waiters, which then look for the key again: nothing else would wake them."""
        if self._by_key.get(key) is announcement:
            del self._by_key[key]
        announcement.changed.set()
