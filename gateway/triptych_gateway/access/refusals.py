"""How long the requests of a tenant wait that is refused again and again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

#: Refusals of a tenant per second, and how many it may get at once, before its requests wait. A refusal takes a millisecond or two
#: of processor time, which the services of other tenants may need on the same machine.
_PER_S, _BURST = 20, 100
#: No request waits longer, in seconds. Clients' time-outs are usually longer.
MAX_DELAY_S = 5.0


class RefusalPace:
    """Slows down a tenant that ignores its refusals. A client that waits as `Retry-After` says hardly gets so many."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: When the refusals of a tenant would have ended, if it had got `_PER_S` of them a second.
        self._busy_until_s: dict[str, float] = {}

    def note(self, tenant: str) -> None:
        """The tenant was refused."""
        now_s = self._clock()
        until_s = max(self._busy_until_s.get(tenant, 0.0), now_s) + 1 / _PER_S
        self._busy_until_s[tenant] = min(until_s, now_s + _BURST / _PER_S + MAX_DELAY_S)

    def delay_s(self, tenant: str) -> float:
        """How long its next request should wait, in seconds. Random, up to a third less or more: requests that came together do not
        go on together."""
        delay_s = max(0.0, self._busy_until_s.get(tenant, 0.0) - self._clock() - _BURST / _PER_S)
        return min(delay_s * random.uniform(2 / 3, 4 / 3), MAX_DELAY_S * random.uniform(2 / 3, 1))
