"""Keys whose bytes somebody is about to send: fetches of such a key wait for them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field

#: Announcements that are remembered; the oldest is forgotten first.
_MAX_ANNOUNCED = 65_536


@dataclass
class _Announcement:
    until_s: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)


class Announcements:
    """Who asked for a key without its bytes was told to send them. Lives on the event loop."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, _Announcement] = OrderedDict()

    def announce(self, key: bytes, for_s: float) -> None:
        """The key's bytes will come, within so many seconds from now."""
        announcement = self._by_key.setdefault(key, _Announcement())
        announcement.until_s = time.monotonic() + for_s
        self._by_key.move_to_end(key)
        if len(self._by_key) > _MAX_ANNOUNCED:
            self._forget(*next(iter(self._by_key.items())))

    def begin(self, key: bytes) -> None:
        """The bytes are here: whoever waits for them goes on."""
        announcement = self._by_key.pop(key, None)
        if announcement is not None:
            announcement.begun.set()

    async def wait_for(self, key: bytes) -> bool:
        """Wait until the bytes of an announced key are here, or it is worth while to look again; False when nobody announced it, or
        nothing came."""
        announcement = self._by_key.get(key)
        if announcement is None:
            return False
        left_s = announcement.until_s - time.monotonic()
        if left_s <= 0:
            self._forget(key, announcement)
            return False
        try:
            async with asyncio.timeout(left_s):
                await announcement.begun.wait()
        except TimeoutError:
            # In the same turn of the loop the bytes may have come, and announced again it may be.
            if not announcement.begun.is_set() and announcement.until_s <= time.monotonic():
                self._forget(key, announcement)
                return False
        return True

    def _forget(self, key: bytes, announcement: _Announcement) -> None:
        """Others who wait for it look again: nobody would tell them any more."""
        if self._by_key.get(key) is announcement:
            del self._by_key[key]
        announcement.begun.set()
