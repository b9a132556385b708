"""Measures everything, or some parts: what `make bench` runs. It writes benchmarks/results/<date>-<part>.json and nothing else.

    python -m benchmarks                                   # all parts
    python -m benchmarks streams steps                     # these
    python -m benchmarks serving --concurrency 1 8         # one, with options of its own, which see its --help

Nothing else should compute on the machine meanwhile. The exit code is 1 when a part failed; the others run all the same.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import takewhile

from benchmarks.harness.machine import REPOSITORY

#: Part -> its options, where it is given none.
PARTS: dict[str, list[str]] = {
    "serving": ["--engine-alone", "--requests-per-stream", "2"],
    "streams": [],
    "steps": [],
    "encoder": ["--flood", "32", "--pictures", "3", "--rounds", "1"],
}


def commands(arguments: Sequence[str]) -> list[list[str]]:
    """Part and options of each that the command line asks for. Raises ValueError when it makes no sense."""
    parts = list(takewhile(PARTS.__contains__, arguments))
    own = arguments[len(parts) :]
    if not own:
        return [[part, *PARTS[part]] for part in parts or PARTS]
    if len(parts) != 1:
        raise ValueError(f"cannot make sense of {own[0]}: parts are {', '.join(PARTS)}; options follow a single one")
    return [[parts[0], *own]]


def main() -> None:
    if {"-h", "--help"} & set(sys.argv[1:2]):
        print(__doc__)
        return
    try:
        wanted = commands(sys.argv[1:])
    except ValueError as error:
        sys.exit(str(error))
    failed = []
    for part, *options in wanted:
        print(f"== {part} {' '.join(options)}", flush=True)
        started_s = time.monotonic()
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{part}", *options], cwd=REPOSITORY, check=False)
        print(f"== {part}: {(time.monotonic() - started_s) / 60:.1f} minutes", flush=True)
        if done.returncode:
            failed.append(part)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
