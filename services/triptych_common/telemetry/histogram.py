"""Histograms without locks, for paths that run once per token or step. prometheus_client's own cost several times as much.

One thread observes; any thread may read. A reader sees at worst a value that is counted but not yet in the sum.
"""

from __future__ import annotations

from bisect import bisect_left

#: Upper bounds of durations of requests and of their stages, in seconds: a small model on a GPU answers in milliseconds, a long
#: prompt on a CPU takes minutes.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
#: Upper bounds of gaps between tokens and of the durations of steps, in seconds: finer between 10 and 100 ms.
GAP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5, 10.0)
#: Upper bounds of numbers of sequences or items in a batch.
SIZES = tuple(float(1 << power) for power in range(11))
#: Upper bounds of numbers of tokens or embeddings in a batch.
TOKENS = tuple(float(1 << power) for power in range(15))


class Histogram:
    """Counts values by bucket.

    Args:
        bounds: upper bounds of the buckets, ascending. Values above the last one go to a further bucket.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        #: Values in each bucket, and their sum.
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Histograms(dict[str, Histogram]):
    """Histograms with the same buckets, by the value of a label. A histogram is made when its value is used for the first time."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__()
        self._bounds = bounds

    def __missing__(self, value: str) -> Histogram:
        histogram = self[value] = Histogram(self._bounds)
        return histogram
