"""Runs a supervisor until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from triptych_cli.stack.supervisor import Reporter, ServiceSpec, Supervisor

#: `timeout` and some terminals send a signal twice. A signal within this time after the first is ignored, in seconds.
_SAME_SIGNAL_S = 0.5


def supervise(
    specs: Sequence[ServiceSpec], reporter: Reporter, main: Callable[[Supervisor], Coroutine[Any, Any, None]] | None = None
) -> None:
    """Run services until SIGINT, SIGTERM or SIGHUP. A second signal kills them at once.

    Args:
        main: see `Supervisor.run`.

    Raises:
        ServiceFailedError: see `Supervisor.run`.
    """

    async def run() -> None:
        supervisor = Supervisor(specs, reporter)
        with _signals(supervisor):
            await supervisor.run(None if main is None else lambda: main(supervisor))

    asyncio.run(run())


@contextlib.contextmanager
def _signals(supervisor: Supervisor) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    first_s: float | None = None

    def on_signal() -> None:
        nonlocal first_s
        if first_s is None:
            first_s = time.monotonic()
            supervisor.stop()
        elif time.monotonic() - first_s > _SAME_SIGNAL_S:
            supervisor.kill()

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
