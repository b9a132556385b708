"""How long and how often a request of a batch is sent again."""

from __future__ import annotations

import random

#: A server that is full.
_FULL = 429
#: Answers of a server, or of a proxy before it, that is away for a time.
_AWAY = frozenset({502, 503, 504})
#: Attempts at a server that fails: at least a second of pauses.
_MAX_FAILURES = 3
#: The first and the longest pause, in seconds.
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 15.0


class Retries:
    """Decides after each attempt at one request whether there is another one.

    A full server is asked as long as it takes.

    Args:
        max_away: attempts at a server that is away.
        away: statuses that say so. A lost connection does, too.
    """

    def __init__(self, max_away: float, away: frozenset[int] = _AWAY) -> None:
        self._max_away, self._away_statuses = max_away, away
        self.num_away = self._num_failures = self._num_full = 0

    def again(self, status: int | None) -> bool:
        """Count an attempt. Returns whether its answer is not final.

        Args:
            status: of the answer; None if the connection was lost.
        """
        if status is None or status in self._away_statuses:
            self.num_away += 1
        elif status == _FULL:
            self._num_full += 1
        elif status >= 500:
            self._num_failures += 1
        else:
            return False
        return self.num_away < self._max_away and self._num_failures < _MAX_FAILURES

    def pause_s(self, retry_after_s: float = 0.0) -> float:
        """How long to wait before the next attempt, in seconds: longer each time, and at least as long as the server asked for.

        It is random, so that requests that were refused together do not come back together.
        """
        num_attempts = self.num_away + self._num_failures + self._num_full
        pause_s = min(_FIRST_PAUSE_S * 2 ** min(num_attempts - 1, 16), _MAX_PAUSE_S)
        return max(retry_after_s, pause_s * random.uniform(0.5, 1.0))
