"""`python -m triptych_frontend --model NAME --port PORT`: runs only the frontend."""

from __future__ import annotations

import sys

from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_common.settings import startup_error

from triptych_frontend.service import run
from triptych_frontend.settings import FrontendSettings


def main() -> None:
    """Read the settings from flags and environment, then serve until told to stop."""
    try:
        settings = CliApp.run(FrontendSettings)
    except ValidationError as error:
        sys.exit(f"frontend: {startup_error(error)}")
    run(settings)


if __name__ == "__main__":
    main()
