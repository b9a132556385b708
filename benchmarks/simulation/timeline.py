"""The virtual clock: events in the order of their times, and of their numbers where these are equal."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Timeline:
    """Runs events one after the other. Time passes only between events, so the host's speed has no effect on it.

    The heap of (time, number) is that of microsoft/vidur (vidur/simulator.py).
    """

    def __init__(self) -> None:
        #: Seconds since the start of the simulation.
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        #: Events that have run.
        self.num_events = 0

    def clock(self) -> float:
        """The time, for parts that take a clock."""
        return self.now_s

    def at(self, time_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run an action at a time, which must not be past."""
        if time_s < self.now_s:
            raise AssertionError(f"an event at {time_s} s was added at {self.now_s} s")
        heapq.heappush(self._events, (time_s, next(self._numbers), action, args))

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        """Run an action after a delay."""
        self.at(self.now_s + delay_s, action, *args)

    def run(self, until_s: float = float("inf")) -> None:
        """Run events until none is left, or the next one is later than `until_s`."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, action, args = heapq.heappop(self._events)
            self.num_events += 1
            action(*args)
