"""A circuit breaker: a service whose calls keep failing gets no calls for a while, and then one at a time until one succeeds.

The states are those of Nygard, "Release It!" (2007). As in sony/gobreaker, a result counts only
if its call began in the current state.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Consecutive failures that open the breaker.
MAX_FAILURES = 5
#: How long it stays open, in seconds. The time doubles from the first value up to the second, each time a trial call fails.
MIN_OPEN_S, MAX_OPEN_S = 5.0, 60.0


class Breaker:
    """Counts the failures of one service. Use it on one thread only.

    Calls that the caller cancelled, and requests that the service refused, are nobody's failure: do not report them.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._num_failures = 0
        self._open_s = MIN_OPEN_S
        self._open_until_s: float | None = None
        #: Changes with each state, so that late results of an earlier one are ignored.
        self._generation = 0
        self._has_trial = False

    @property
    def is_closed(self) -> bool:
        """Whether the service works, as far as is known."""
        return self._open_until_s is None

    @property
    def takes_calls(self) -> bool:
        """Whether a call may begin now. Asking changes nothing."""
        return self._open_until_s is None or (self._clock() >= self._open_until_s and not self._has_trial)

    def begin(self) -> int:
        """A call begins. Returns the generation to report its result with."""
        if self._open_until_s is not None and self._clock() >= self._open_until_s:
            self._has_trial = True
        return self._generation

    def succeeded(self, generation: int) -> bool:
        """The call got an answer. Returns True if the breaker was not closed before."""
        if generation != self._generation:
            return False
        self._num_failures, self._open_s = 0, MIN_OPEN_S
        if self._open_until_s is None:
            return False
        self._open_until_s = None
        self._next_generation()
        return True

    def failed(self, generation: int) -> bool:
        """The service failed the call. Returns True if the breaker opened."""
        if generation != self._generation:
            return False
        self._num_failures += 1
        was_open = self._open_until_s is not None
        if self._num_failures < MAX_FAILURES and not was_open:
            return False
        if was_open:
            self._open_s = min(self._open_s * 2, MAX_OPEN_S)
        self._open_until_s = self._clock() + self._open_s
        self._next_generation()
        return True

    def ended(self, generation: int) -> None:
        """The call ended without a result, e.g. because it was cancelled."""
        if generation == self._generation:
            self._has_trial = False

    def _next_generation(self) -> None:
        self._generation += 1
        self._has_trial = False
