"""How many sequences came to an engine lately, as the engine counts it and as those see it who choose among engines."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

#: In this time an arrival fades to e^-1, in seconds.
_FADING_S = 10.0


class Arrivals:
    """A sequence counts 1 when it comes, and less and less after that.

    Where conversations have pauses, this tells better than the load how many of them an engine has.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        #: How many there were, and when. One object, because other threads read it.
        self._last = (0.0, clock())

    @property
    def num_recent(self) -> float:
        count, at_s = self._last
        return count * math.exp((at_s - self._clock()) / _FADING_S)

    def add(self, count: int = 1) -> None:
        """Sequences have come."""
        self.set(self.num_recent + count)

    def set(self, num_recent: float) -> None:
        """So many there are now, as who counts them says."""
        self._last = (num_recent, self._clock())
