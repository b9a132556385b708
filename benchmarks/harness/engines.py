"""What a running stack says of its engines, and the wait for all of them."""

from __future__ import annotations

import time

import httpx

from benchmarks.errors import BenchmarkError
from benchmarks.harness.stack import Stack

SAMPLE_S = 0.2
#: Engines tell their loads at least this often, in seconds.
SETTLE_S = 1.5
#: Until all engines serve, at most: for two engines, and for each further one.
_START_S, _START_EACH_S = 60.0, 3.0


def engines_of(stack: Stack) -> list[dict]:
    """What the gateway says of the engines."""
    return list(httpx.get(f"{stack.target.url}/load", trust_env=False).json()["engines"])


def wait_until_all_serve(stack: Stack, num_engines: int) -> None:
    """One engine and one frontend suffice for `triptych serve` to be ready. Raises BenchmarkError if some engine takes too long."""
    most_s = _START_S + _START_EACH_S * max(0, num_engines - 2)
    deadline_s = time.monotonic() + most_s
    while sum(engine["state"] == "serving" for engine in engines_of(stack)) < num_engines:
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"not all of {num_engines} engines serve after {most_s:.0f} s")
        time.sleep(SAMPLE_S)
    time.sleep(SETTLE_S)
