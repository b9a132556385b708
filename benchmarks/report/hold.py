"""Runs a benchmark from its start to its printed tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from benchmarks.errors import BenchmarkError
from benchmarks.harness.sitting import RESULTS, write_results
from benchmarks.report.document import render


def hold(run: Callable[[], dict], num_failed: Callable[[dict], int], name: str) -> None:
    """Run a benchmark, keep its results and print their tables. Exits with 1 when something failed in it, or it could not be run.

    Args:
        run: returns the results; raises BenchmarkError when it cannot.
        num_failed: how many requests failed, by the results.
        name: of the results' file, benchmarks/results/<date>-<name>.json.
    """
    # So that each way of being told to stop unwinds the blocks that end the processes: asyncio turns SIGINT into a cancellation,
    # also where a shell had set it to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        results = run()
    except BenchmarkError as error:
        sys.exit(str(error))
    path = RESULTS / f"{results['date']}-{name}.json"
    write_results(path, results)
    print(f"\n{render(results, path.name)}\n")
    if count := num_failed(results):
        sys.exit(f"{count} requests failed")
