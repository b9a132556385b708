"""The pace at which a tenant is told that it is beyond its limits."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Refusals of a tenant per second, and how many it may get at once. A refusal takes a millisecond or two of processor time, which
#: the services of other tenants may need on the same machine. A client that waits as `Retry-After` says never gets so many.
_PER_S, _BURST = 20, 100
#: No answer waits longer, in seconds. Other clients' time-outs are longer.
MAX_DELAY_S = 5.0


class RefusalPace:
    """Delays the refusals of a tenant that asks again and again. So it cannot use all of the gateway's processor time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._busy_until_s: dict[str, float] = {}

    def delay_s(self, tenant: str) -> float:
        """How long the next refusal should wait, in seconds."""
        now_s = self._clock()
        free_s = _BURST / _PER_S
        until_s = max(self._busy_until_s.get(tenant, 0.0), now_s) + 1 / _PER_S
        self._busy_until_s[tenant] = until_s = min(until_s, now_s + free_s + MAX_DELAY_S)
        return max(0.0, until_s - now_s - free_s)
