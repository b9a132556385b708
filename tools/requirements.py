"""Prints the requirements of Triptych with one extra, from both pyproject.toml: `python requirements.py EXTRA`.

Images install them before the code, so that a change of the code does not reinstall torch.
"""

import sys
import tomllib
from pathlib import Path
from typing import Any


def _project(folder: str) -> dict[str, Any]:
    return tomllib.loads(Path(folder, "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements(extra: str) -> list[str]:
    """The requirements of the services with an extra, and those of the client package, which they import."""
    client, services = _project("clients/python"), _project(".")
    common = [name for name in services["dependencies"] if not name.startswith(f"{client['name']}==")]
    return [*client["dependencies"], *common, *services["optional-dependencies"][extra]]


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1])))
