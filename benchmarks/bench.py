"""Measures everything, or some parts, and writes docs/performance.md from it: what `make bench` runs.

    python benchmarks/bench.py                                 # all parts
    python benchmarks/bench.py streams steps                   # these
    python benchmarks/bench.py serving --concurrency 1 8       # one, with options of its own, which see its --help

Each part is a program of its own that writes benchmarks/results/<date>-<part>.json, and from it its tables and charts; the latter
only with --report where it gets options. Nothing else should compute on the machine meanwhile. The exit code is 1 when a part
failed; the others run all the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

#: Part -> what it is run with, beside --report, where it is given nothing.
PARTS: dict[str, list[str]] = {
    "serving": ["--engine-alone", "--requests-per-stream", "2"],
    "streams": [],
    "steps": [],
    "encoder": ["--inside", "--flood", "32", "--pictures", "3", "--rounds", "1"],
}


def commands(arguments: Sequence[str]) -> list[list[str]]:
    """Program and arguments of each part that the command line asks for. Raises ValueError when it makes no sense."""
    parts = list(takewhile(PARTS.__contains__, arguments))
    own = arguments[len(parts) :]
    if not own:
        return [[f"{part}.py", *PARTS[part], "--report"] for part in parts or PARTS]
    if len(parts) != 1:
        raise ValueError(f"cannot make sense of {own[0]}: parts are {', '.join(PARTS)}; options follow a single one")
    return [[f"{parts[0]}.py", *own]]


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(__doc__)
        return
    try:
        wanted = commands(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"bench.py: {error}")
    failed = []
    for program, *arguments in wanted:
        print(f"== {program} {' '.join(arguments)}", flush=True)
        started_s = time.monotonic()
        done = subprocess.run([sys.executable, str(Path(__file__).with_name(program)), *arguments], check=False)
        print(f"== {program}: {(time.monotonic() - started_s) / 60:.1f} minutes", flush=True)
        if done.returncode:
            failed.append(program)
    if failed:
        sys.exit(f"bench.py: failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
