"""`python -m triptych_engine`: parses the flags and runs the engine."""

from __future__ import annotations

import asyncio
import sys

from pydantic import ValidationError
from pydantic_settings import CliApp
from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.torch_env import set_torch_environment
from triptych_common.rpc.server import run_service
from triptych_common.settings import startup_error

from triptych_engine.settings import EngineSettings


def run(settings: EngineSettings) -> None:
    """Serve until SIGINT or SIGTERM."""

    async def serve(stop: asyncio.Event) -> None:
        set_torch_environment()
        with startup_objects_frozen():
            from triptych_engine.service import EngineService  # imports torch, so only once the flags are valid

        await EngineService(settings).run(stop)

    run_service("engine", settings, serve)


def main(args: list[str] | None = None) -> None:
    """Parse flags and environment, then run."""
    try:
        settings = CliApp.run(EngineSettings, cli_args=args if args is not None else sys.argv[1:])
    except ValidationError as error:
        sys.exit(f"triptych engine: {startup_error(error)}")
    run(settings)


if __name__ == "__main__":
    main()
