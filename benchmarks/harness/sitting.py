"""One sitting of a benchmark: its command line, what its results say of it, and where they are kept."""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from benchmarks.harness.machine import REPOSITORY, BusyMeter, describe_commit, describe_machine, describe_versions

RESULTS = REPOSITORY / "benchmarks" / "results"
#: Beyond this, what else runs on the machine decides about the figures.
MAX_BUSY_PERCENT = 15.0
_BUSY_SECONDS = 2.0
#: Services that have just started get this long to come to rest: an engine still writes to its KV cache's memory once.
_REST_SECONDS, _AT_REST_PERCENT = 20.0, 5.0


def without_directories(command: str) -> str:
    """A command line without the directories of absolute paths: where files lie is this machine's own affair."""
    return re.sub(r"(?<![\w./])/(?!/)(?:[^\s/:'\"]+/)+(?=[^\s/:'\"])", "", command)


def describe(kind: str, services: Iterable[psutil.Process] = ()) -> dict:
    """What all results begin with. To be called with everything loaded and nothing under load.

    Args:
        kind: the kind of the results; it is also the name of the program and of its report.
        services: processes whose share of what the cores do meanwhile is to be told.
    """
    services, started_s = list(services), time.monotonic()
    while True:
        meter = BusyMeter(services)
        time.sleep(_BUSY_SECONDS)
        busy = meter.percent()
        if busy["own"] <= _AT_REST_PERCENT or time.monotonic() - started_s > _REST_SECONDS:
            break
    print(f"with nothing under load the cores are {busy['all']:.0f} % busy, {busy['own']:.0f} % with what is measured", flush=True)
    if busy["all"] > MAX_BUSY_PERCENT:
        print("warning: something else computes on this machine; no figure of this sitting can be trusted", flush=True)
    return {
        "kind": kind,
        "command": without_directories(shlex.join(["python", "-m", f"benchmarks.{kind}", *sys.argv[1:]])),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "busy_percent": busy,
    }


def write_results(path: Path, results: dict) -> None:
    """Keep results as JSON, and say where."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def new_parser(document: str | None) -> argparse.ArgumentParser:
    """A command line whose help begins with the module's docstring."""
    return argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)


def check_positive(parser: argparse.ArgumentParser, *values: float) -> None:
    """End with the parser's error unless all counts and times are positive."""
    if min(values) <= 0:
        parser.error("all counts and times must be positive")
