"""`python -m triptych_encoder`: run the encoder with its settings' flags."""

from __future__ import annotations

import asyncio
import sys

from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_common.server import run_service
from triptych_common.settings import startup_error

from triptych_encoder.settings import EncoderSettings


def run(settings: EncoderSettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    from triptych_encoder.service import EncoderService  # torch loads here, after bad flags were refused

    async def serve(stop: asyncio.Event) -> None:
        await EncoderService(settings).run(stop)

    run_service("encoder", settings, serve)


def main(args: list[str] | None = None) -> None:
    """Parse flags and environment, then run."""
    try:
        settings = CliApp.run(EncoderSettings, cli_args=args if args is not None else sys.argv[1:])
    except ValidationError as error:
        sys.exit(f"triptych encoder: {startup_error(error)}")
    run(settings)


if __name__ == "__main__":
    main()
