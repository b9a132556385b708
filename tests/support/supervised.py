"""Runs fake children under the supervisor: `python supervised.py DIRECTORY NAME[:BEHAVIOUR]...`. Prints READY once they are."""

import sys
from pathlib import Path

from rich.console import Console
from triptych_cli.stack.supervise import supervise
from triptych_cli.stack.supervisor import ServiceFailedError
from triptych_cli.terminal import TerminalReporter

from support.children import spec


def main(directory: Path, *children: str) -> None:
    specs = [spec(directory, *child.split(":")) for child in children]
    names = [child.name for child in specs]
    reporter = TerminalReporter(Console(stderr=True), names, True, lambda elapsed_s: print("READY", flush=True))
    try:
        with reporter:
            supervise(specs, reporter)
    except ServiceFailedError as error:
        reporter.failed(str(error))
        reporter.show_last_lines(error.last_lines)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
