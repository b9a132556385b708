"""Prints the requirements of Triptych with one extra, from pyproject.toml: `python requirements.py EXTRA`.

Images install them before the code, so that a change of the code does not reinstall torch.
"""

import sys
import tomllib
from pathlib import Path


def requirements(extra: str) -> list[str]:
    """The common requirements and those of the extra."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *project["optional-dependencies"][extra]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
