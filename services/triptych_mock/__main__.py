"""`python -m triptych_mock --port PORT`: runs the mock server."""

from __future__ import annotations

import sys

from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_common.settings import startup_error

from triptych_mock.service import run
from triptych_mock.settings import MockSettings


def main() -> None:
    """Read the settings from flags and environment, then serve until told to stop."""
    try:
        settings = CliApp.run(MockSettings)
    except ValidationError as error:
        sys.exit(f"mock: {startup_error(error)}")
    run(settings)


if __name__ == "__main__":
    main()
