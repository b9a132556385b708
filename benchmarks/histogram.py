"""Distributions kept as counts: a few hundred numbers for any number of samples, and those of several runs add up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping

#: Buckets between a value and its double: a value is known to 4.4 %.
PER_OCTAVE = 16
#: Shorter times are counted as this, in milliseconds: pieces of text that were read together.
SHORTEST_MS = 0.01

#: Bucket -> samples in it. Bucket k holds [2^(k/16), 2^((k+1)/16)) milliseconds; a string, because JSON knows no other keys.
Histogram = dict[str, int]


def histogram(times_s: Iterable[float]) -> Histogram:
    """Count times, given in seconds."""
    buckets = Counter(math.floor(PER_OCTAVE * math.log2(max(time_s * 1e3, SHORTEST_MS))) for time_s in times_s)
    return {str(bucket): buckets[bucket] for bucket in sorted(buckets)}


def merged(histograms: Iterable[Mapping[str, int]]) -> Histogram:
    """The samples of all."""
    total: Counter[int] = Counter()
    for one in histograms:
        total.update({int(bucket): count for bucket, count in one.items()})
    return {str(bucket): total[bucket] for bucket in sorted(total)}


def quantiles(counts: Mapping[str, int]) -> list[tuple[float, float]]:
    """(fraction of the samples that are shorter, milliseconds) at the begin of the first bucket and the end of each.

    The longest sample stands for the last half of the last sample's share, so that every fraction is below 1.
    """
    buckets = sorted(map(int, counts))
    total, below, points = sum(counts.values()), 0, [(0.0, 2 ** (buckets[0] / PER_OCTAVE))]
    for bucket in buckets:
        below += counts[str(bucket)]
        points.append((min(below / total, 1 - 0.5 / total), 2 ** ((bucket + 1) / PER_OCTAVE)))
    return points
