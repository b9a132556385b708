"""What gateway_overhead.py and frontend_overhead.py share: processes around a service with no model behind it, and its CPU time."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil
from machine import cpu_s

HOST = "127.0.0.1"
#: Of a stream, and of all together.
TOKENS, TOKENS_PER_S = 128, 12_000.0
#: A service is watched for so long at least, in seconds.
OBSERVED_S = 8.0
#: Less than this between two tokens of a stream asks more of the machine than any engine does.
MIN_INTERVAL_S = 0.005
READY_TIMEOUT_S = 60.0
_SAMPLE_INTERVAL_S, _WARM_UP_TOKENS = 0.2, 8


@dataclass(frozen=True)
class Overhead:
    """What one service needed for streams that all advance at the same pace.

    Attributes:
        messages_per_token: less than 1 where the service fell behind and sent several tokens at once.
        tokens_per_s: the pace that was reached.
    """

    streams: int
    num_tokens: int
    cpu_us_per_token: float
    messages_per_token: float
    tokens_per_s: float
    idle_mb: float
    peak_mb: float

    def __str__(self) -> str:
        return (
            f"{self.streams:5d} streams, {self.num_tokens} tokens at {self.tokens_per_s:.0f}/s: {self.cpu_us_per_token:.1f} us of"
            f" CPU per token, {self.messages_per_token:.2f} messages per token, {self.idle_mb:.0f} MB idle, {self.peak_mb:.0f} peak"
        )


def interval_s(streams: int, tokens_per_s: float = TOKENS_PER_S) -> float:
    """Seconds between two tokens of each stream that make so many per second in all, as far as that is sensible."""
    return max(streams / tokens_per_s, MIN_INTERVAL_S)


async def ticks(interval_s: float) -> AsyncIterator[None]:
    """One item per interval; what took too long is not made up for."""
    next_s = time.monotonic()
    while True:
        next_s = max(next_s + interval_s, time.monotonic())
        await asyncio.sleep(next_s - time.monotonic())
        yield


@contextmanager
def process(*command: str) -> Iterator[psutil.Process]:
    """A Python process that ends with the block."""
    with subprocess.Popen([sys.executable, *command]) as child:
        try:
            yield psutil.Process(child.pid)
        finally:
            child.terminate()


async def observe(service: psutil.Process, streams: int, tokens: int, put_load: Callable[[int], Awaitable[int]]) -> Overhead:
    """Put a load on a service, again and again for some seconds, and watch it.

    Args:
        tokens: of each stream.
        put_load: takes the tokens of each stream; awaits the end of all streams; returns how many messages they brought.
    """
    idle = peak = service.memory_info().rss
    await put_load(_WARM_UP_TOKENS)
    before_s, started_s, num_loads, num_messages = cpu_s(service), time.perf_counter(), 0, 0
    while time.perf_counter() - started_s < OBSERVED_S:
        loading = asyncio.ensure_future(put_load(tokens))
        while not loading.done():
            peak = max(peak, service.memory_info().rss)
            await asyncio.wait({loading}, timeout=_SAMPLE_INTERVAL_S)
        num_messages += await loading
        num_loads += 1
    elapsed_s, spent_s = time.perf_counter() - started_s, cpu_s(service) - before_s
    num_tokens = num_loads * streams * tokens
    return Overhead(
        streams, num_tokens, spent_s * 1e6 / num_tokens, num_messages / num_tokens, num_tokens / elapsed_s, idle / 1e6, peak / 1e6
    )


def parse_args(document: str, *more: tuple[str, dict]) -> argparse.Namespace:
    """The command line of both.

    Args:
        more: further options: name, keywords of `add_argument`.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 1000], metavar="N")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of each stream")
    parser.add_argument("--tokens-per-s", type=float, default=TOKENS_PER_S, help="of all streams together")
    parser.add_argument("--interval-ms", type=float, help="instead: between two tokens of a stream")
    for name, keywords in more:
        parser.add_argument(name, **keywords)
    args = parser.parse_args()
    if min(*args.streams, args.tokens, args.tokens_per_s) <= 0:
        parser.error("all counts must be positive")
    return args
