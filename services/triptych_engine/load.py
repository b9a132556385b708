"""How busy the engine is, and whether its steps end."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from triptych_common.arrivals import Arrivals

from triptych_engine.scheduling.scheduler import Scheduler

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
    #: Sequences that came lately, see `Arrivals`.
    num_recent: float
    #: The worker process was lost, and another one is being started.
    is_restarting: bool = False


class StepProgress:
    """When steps end. The step loop's thread writes it, other threads read `age_s`."""

    def __init__(self) -> None:
        #: When the last step ended, or work began after a pause; None while there is no work.
        self._since_s: float | None = None
        #: When the last step ended.
        self._ended_s = 0.0
        self._durations_s: deque[float] = deque([0.0], maxlen=_NUM_STEPS)

    def resume(self) -> None:
        """There is work, perhaps after a pause."""
        if self._since_s is None:
            self._since_s = time.perf_counter()

    def pause(self) -> None:
        """There is no work."""
        self._since_s = None

    def ended(self, launched_s: float) -> float:
        """A step has ended. Returns how long it took, in seconds.

        Args:
            launched_s: when it was launched, by `time.perf_counter`.
        """
        now_s = time.perf_counter()
        # The device starts a step when the step is launched and the previous one is done.
        step_s = now_s - max(launched_s, self._ended_s)
        self._ended_s = self._since_s = now_s
        self._durations_s.append(step_s)
        return step_s

    @property
    def age_s(self) -> float:
        """For how long no step has ended although there is work, in seconds."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.perf_counter() - since_s

    @property
    def longest_s(self) -> float:
        """The longest of the last steps, in seconds."""
        return max(self._durations_s)


def load_of(scheduler: Scheduler, progress: StepProgress, arrivals: Arrivals) -> Load:
    """The load as it is between two steps."""
    kv_cache, pool = scheduler.kv_cache, scheduler.kv_cache.pool
    return Load(
        num_running=scheduler.num_running,
        num_waiting=scheduler.num_waiting,
        num_blocks=pool.num_blocks,
        num_free_blocks=kv_cache.num_free_blocks,
        block_size=kv_cache.block_size,
        prefix_cache_queries=kv_cache.prefix_cache_queries,
        prefix_cache_hits=kv_cache.prefix_cache_hits,
        num_preemptions=scheduler.num_preemptions,
        num_generated_tokens=scheduler.num_generated_tokens,
        step_age_s=0.0,
        longest_step_s=progress.longest_s,
        num_recent=arrivals.num_recent,
    )
