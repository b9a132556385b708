"""One line on a terminal: requests and tokens, done and per second."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class BatchProgress:
    """Shows progress on a terminal, and nothing elsewhere.

    Args:
        num_done: requests that an earlier run answered.
    """

    def __init__(self, console: Console, num_requests: int, num_done: int) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[speed]}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._task = self._progress.add_task("requests", total=num_requests, completed=num_done, speed="")
        self._num_answers = self._num_input = self._num_output = 0
        self._start_s = time.monotonic()

    def __enter__(self) -> BatchProgress:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def add(self, num_input_tokens: int, num_output_tokens: int) -> None:
        """Count one answer."""
        self._num_answers += 1
        self._num_input += num_input_tokens
        self._num_output += num_output_tokens
        self._progress.update(self._task, advance=1, speed=self.speed())

    def speed(self) -> str:
        """What this run did per second."""
        elapsed_s = max(time.monotonic() - self._start_s, 1e-9)
        rates = [count / elapsed_s for count in (self._num_answers, self._num_input, self._num_output)]
        return f"{rates[0]:.1f} requests/s, {rates[1]:.0f} input tok/s, {rates[2]:.0f} output tok/s"
