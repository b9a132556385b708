"""`python -m triptych_engine`: parses the flags and runs the engine."""

from __future__ import annotations

import asyncio

from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.torch_env import set_torch_environment
from triptych_common.rpc.server import run_service
from triptych_common.settings import read_settings

from triptych_engine.settings import EngineSettings


def run(settings: EngineSettings) -> None:
    """Serve until SIGINT or SIGTERM."""

    async def serve(stop: asyncio.Event) -> None:
        set_torch_environment()
        if settings.node_rank:
            from triptych_engine.assembly import new_node

            await (await asyncio.to_thread(new_node, settings)).serve(stop)
            return
        with startup_objects_frozen():
            from triptych_engine.service import EngineService  # only once the flags are valid: it imports much

        await EngineService(settings).run(stop)

    run_service("engine", settings, serve)


if __name__ == "__main__":
    run(read_settings("engine", EngineSettings))
