"""Prints the requirements of Triptych with extras, from both pyproject.toml: `python requirements.py EXTRA...`.

Images install them before the code, so that a change of the code does not reinstall torch.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any


def _project(folder: str) -> dict[str, Any]:
    return tomllib.loads(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(*extras: str) -> list[str]:
    """The requirements of the services with these extras, and those of the client package, which they import."""
    client, services = _project("clients/python"), _project(".")
    common = [name for name in services["dependencies"] if not name.startswith(f"{client['name']}==")]
    own = [name for extra in extras for name in services["optional-dependencies"][extra]]
    return [*client["dependencies"], *common, *own]


if __name__ == "__main__":
    print("\n".join(requirements(*sys.argv[1:])))
