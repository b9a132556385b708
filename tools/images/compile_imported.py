"""Writes the bytecode of everything that the given modules import: `python compile_imported.py MODULE...`.

A container cannot write it later, because its root file system is read-only. It would compile thousands of files at each start, and
hundreds at each health check. Files that nobody imports get none, and these are most of torch and transformers.
"""

from __future__ import annotations

import importlib
import importlib.util
import py_compile
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    for name in names:
        importlib.import_module(name)
    # Objects of torch pretend to be modules with a file.
    files = {file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)) and Path(file).is_file()}
    files.discard(__file__)  # not part of the image
    for file in sorted(files):
        if file.endswith(".py") and not Path(importlib.util.cache_from_source(file)).exists():
            # Files of an image never change, so nobody needs to compare them with their source.
            py_compile.compile(file, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


if __name__ == "__main__":
    main(sys.argv[1:])
