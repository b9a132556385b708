"""How busy the engine is, and whether its steps end."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

#: Steps of which the longest is told.
_NUM_STEPS = 256


@dataclass(frozen=True, slots=True)
class Load:
    """How busy the engine was after a step."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_generated_tokens: int
    #: How long the step that runs has been running, and the longest of the last steps, in seconds.
    step_age_s: float
    longest_step_s: float


class StepProgress:
    """When steps end. The step loop's thread writes it, other threads read `age_s`."""

    def __init__(self) -> None:
        #: When the last step ended, or work began after a pause; None while there is no work.
        self._since_s: float | None = None
        self._durations_s: deque[float] = deque([0.0], maxlen=_NUM_STEPS)

    def resume(self) -> None:
        """There is work, perhaps after a pause."""
        if self._since_s is None:
            self._since_s = time.perf_counter()

    def pause(self) -> None:
        """There is no work."""
        self._since_s = None

    def ended(self, step_s: float) -> None:
        """A step has ended, which took so long."""
        self._since_s = time.perf_counter()
        self._durations_s.append(step_s)

    @property
    def age_s(self) -> float:
        """For how long no step has ended although there is work, in seconds."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.perf_counter() - since_s

    @property
    def longest_s(self) -> float:
        """The longest of the last steps, in seconds."""
        return max(self._durations_s)
