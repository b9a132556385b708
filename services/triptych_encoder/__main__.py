"""`python -m triptych_encoder`: run the encoder with its settings' flags."""

from __future__ import annotations

import asyncio
import logging

from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.torch_env import set_torch_environment
from triptych_common.model.store import WEIGHT_PATTERNS, has_towers, resolve_model, served_name
from triptych_common.rpc.server import run_service
from triptych_common.settings import read_settings

from triptych_encoder.settings import EncoderSettings

log = logging.getLogger(__name__)


def run(settings: EncoderSettings) -> None:
    """Serve until SIGINT or SIGTERM. With a text-only model there is nothing to encode, and it returns at once."""

    async def serve(stop: asyncio.Event) -> None:
        path = await asyncio.to_thread(resolve_model, settings.model, WEIGHT_PATTERNS)
        if not has_towers(path):
            log.info("%s takes text only: there is nothing to encode, and no encoder is needed", served_name(settings.model))
            return
        set_torch_environment()
        with startup_objects_frozen():
            from triptych_encoder.service import EncoderService  # imports torch, only when it is needed

        await EncoderService(settings).run(stop)

    run_service("encoder", settings, serve)


if __name__ == "__main__":
    run(read_settings("encoder", EncoderSettings))
