"""From the readings of a gateway to the numbers on the screen."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from triptych_cli.top.reading import Reading, Where

_START = "process_start_time_seconds"
_GATEWAY = "triptych_gateway"
#: Routes that are polled, by this command too. They are not shown as requests.
_PROBES = frozenset({"/metrics", "/load", "/admin/models", "/live", "/ready", "/health"})
LATENCIES = {
    "time to first token": f"{_GATEWAY}_time_to_first_token_seconds",
    "between two tokens": f"{_GATEWAY}_inter_token_seconds",
    "whole request": f"{_GATEWAY}_request_seconds",
}
QUANTILES = (0.5, 0.95, 0.99)


class History:
    """The readings of the last seconds.

    Args:
        window_s: rates are means over this time.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._readings: deque[Reading] = deque()

    def add(self, reading: Reading) -> Figures:
        """Take the newest reading. Returns the numbers to show."""
        readings = self._readings
        if readings and readings[-1].total(_START) != reading.total(_START):
            readings.clear()  # the gateway was restarted, so its counts began again
        readings.append(reading)
        while len(readings) > 2 and reading.at_s - readings[1].at_s >= self._window_s:
            readings.popleft()
        return Figures(readings[0], reading)


@dataclass(frozen=True)
class Figures:
    """The numbers of an interval. Those that need two readings are None if there is only one."""

    old: Reading
    new: Reading

    @property
    def interval_s(self) -> float:
        return self.new.at_s - self.old.at_s

    @property
    def in_flight(self) -> int:
        """Requests that are being answered, without the one that reads the metrics."""
        return max(0, int(self.new.total(f"{_GATEWAY}_requests_in_flight")) - 1)

    @property
    def requests_per_s(self) -> float | None:
        return self._rate(f"{_GATEWAY}_requests_total", _is_request)

    @property
    def failed_per_s(self) -> float | None:
        """Answers with a 5xx, and streams that ended with an error."""
        answers = self._rate(f"{_GATEWAY}_requests_total", lambda labels: _is_request(labels) and labels["status"].startswith("5"))
        streams = self._rate(f"{_GATEWAY}_stream_errors_total")
        return None if answers is None or streams is None else answers + streams

    @property
    def refused_per_s(self) -> float | None:
        """Answers with a 4xx."""
        return self._rate(f"{_GATEWAY}_requests_total", lambda labels: _is_request(labels) and labels["status"].startswith("4"))

    def tokens_per_s(self, name: str) -> float | None:
        """Growth per second of a count of tokens, summed over the engines. The gateway counts tokens only when a request ends."""
        rates = [self.rate_of(engine, (name,), "engines") for engine in self.new.load["engines"]]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def quantiles(self, metric: str) -> tuple[float | None, ...]:
        """Of the values of the interval; None if there were none."""
        old, new = self.old.buckets(metric, _is_request), self.new.buckets(metric, _is_request)
        counts = {bound: new[bound] - old.get(bound, 0.0) for bound in sorted(new)}
        return tuple(quantile(counts, share) for share in QUANTILES)

    def rate_of(self, service: Mapping[str, Any], names: tuple[str, ...], kind: str) -> float | None:
        """Growth per second of counts of an engine or encoder of GET /load; None if it is new or away."""
        old = next((one for one in self.old.load[kind] if one["id"] and one["id"] == service["id"]), None)
        if old is None or not self.interval_s or any(one[name] is None for one in (old, service) for name in names):
            return None
        return float(sum(service[name] - old[name] for name in names)) / self.interval_s

    def _rate(self, name: str, where: Where = lambda labels: True) -> float | None:
        if not self.interval_s:
            return None
        return (self.new.total(name, where) - self.old.total(name, where)) / self.interval_s


def quantile(counts: Mapping[float, float], share: float) -> float | None:
    """A quantile of a histogram, interpolated in its bucket as Prometheus does; None if it is empty.

    Args:
        counts: upper bound -> values up to it, ascending. The last bound is infinite.
    """
    total = counts.get(math.inf, 0.0)
    if total <= 0:
        return None
    below, lower = 0.0, 0.0
    for bound, count in counts.items():
        if count >= share * total:
            # Above the last finite bound nothing is known.
            return lower if bound == math.inf else lower + (bound - lower) * (share * total - below) / (count - below)
        below, lower = count, bound
    return lower


def _is_request(labels: Mapping[str, str]) -> bool:
    return labels.get("route") not in _PROBES
