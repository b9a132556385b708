"""One sitting of a benchmark, whatever it measures: how it is stopped, what its results say of it, where they are kept."""

from __future__ import annotations

import datetime
import json
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil
from child import ChildError
from machine import busy_percent, describe_commit, describe_machine, describe_versions
from report import DOCUMENT, write_document

RESULTS = Path(__file__).parent / "results"
#: Beyond this, what else runs on the machine decides about the figures.
MAX_BUSY_PERCENT = 15.0


def describe(kind: str, services: Iterable[psutil.Process] = (), arguments: Sequence[str] | None = None) -> dict:
    """What all results begin with. To be called with everything loaded and nothing under load.

    Args:
        kind: of the results: which report they belong to.
        services: processes whose share of what the cores do meanwhile is to be told.
        arguments: of the command line, where they are not to be told as they are.
    """
    busy = busy_percent(services)
    print(f"with nothing under load the cores are {busy['all']:.0f} % busy, {busy['own']:.0f} % with what is measured", flush=True)
    if busy["all"] > MAX_BUSY_PERCENT:
        print("warning: something else computes on this machine; no figure of this sitting can be trusted", flush=True)
    return {
        "kind": kind,
        "command": shlex.join(
            ["python", f"benchmarks/{Path(sys.argv[0]).name}", *(sys.argv[1:] if arguments is None else arguments)]
        ),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "busy_percent": busy,
    }


def hold(run: Callable[[], dict], num_failed: Callable[[dict], int], name: str, *, report: bool) -> None:
    """Run a benchmark and keep its results. Exits with 1 when something failed in it, or it could not be run.

    Args:
        run: returns the results; raises ChildError when it cannot.
        num_failed: what failed, by the results.
        name: of the results' file.
        report: also put the results into the document.
    """
    # So that each way of being told to stop unwinds the blocks that end the processes: asyncio turns SIGINT into a cancellation,
    # also where a shell had set it to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    try:
        results = run()
    except ChildError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{results['date']}-{name}.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    if report:
        write_document(path)
        print(f"wrote {DOCUMENT}")
    if count := num_failed(results):
        sys.exit(f"{Path(sys.argv[0]).name}: {count} failed")
