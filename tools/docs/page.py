"""Writes a generated page, or tells how it differs from the one that is there."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_or_check(wanted: str, file: Path, description: str | None, source: str) -> None:
    """The command line of a generator: write the page, or with --check exit with 1 if it differs.

    Args:
        wanted: the page.
        source: what the page is made from, for the message.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if the page is out of date")
    there = file.read_text(encoding="utf-8") if file.is_file() else ""
    if not parser.parse_args().check:
        file.write_text(wanted, encoding="utf-8")
        return
    if wanted != there:
        sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), wanted.splitlines(True), "there", "wanted"))
        sys.exit(f"{file.relative_to(ROOT)} differs from the {source}: commit what `make docs` writes")
