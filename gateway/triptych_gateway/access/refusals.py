"""How long the requests of a key wait that is refused again and again."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

#: Refusals of a key per second, and how many it may get at once, before its requests wait. A refusal takes a millisecond or two
#: of processor time, which the services of other tenants may need on the same machine.
_PER_S, _BURST = 20, 100
#: No request waits longer, in seconds. Clients' time-outs are usually longer.
MAX_DELAY_S = 5.0
#: Requests of a key that wait at once. Each has a connection, of which there are so many for all tenants together. More of them are
#: not slowed down.
MAX_WAITING = 1024


class RefusalPace:
    """Slows down a key whose user ignores refusals. A client that waits as `Retry-After` says hardly gets so many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the refusals of a key would have ended, if it had got `_PER_S` of them a second.
        self._busy_until_s: dict[str, float] = {}
        self._waiting = Counter[str]()

    def note(self, key_id: str) -> None:
        """A request of the key was refused."""
        now_s = self._clock()
        until_s = max(self._busy_until_s.get(key_id, 0.0), now_s) + 1 / _PER_S
        self._busy_until_s[key_id] = min(until_s, now_s + _BURST / _PER_S + MAX_DELAY_S)

    async def wait(self, key_id: str) -> None:
        """Wait as long as the next request of the key should."""
        delay_s = self.delay_s(key_id)
        if not delay_s or self._waiting[key_id] >= MAX_WAITING:
            return
        self._waiting[key_id] += 1
        try:
            await asyncio.sleep(delay_s)
        finally:
            self._waiting[key_id] -= 1

    def delay_s(self, key_id: str) -> float:
        """How long the next request of the key should wait, in seconds. Random, up to a third less or more: requests that came
        together do not go on together."""
        delay_s = max(0.0, self._busy_until_s.get(key_id, 0.0) - self._clock() - _BURST / _PER_S)
        return min(delay_s * random.uniform(2 / 3, 4 / 3), MAX_DELAY_S * random.uniform(2 / 3, 1)) if delay_s else 0.0
