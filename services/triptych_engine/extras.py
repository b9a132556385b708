"""What an engine does with packages that need not be installed."""

from __future__ import annotations

import importlib
import logging
from types import ModuleType
from typing import TYPE_CHECKING

from triptych.errors import StartupError

from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.settings import EngineSettings

if TYPE_CHECKING:
    from triptych_engine.kv_events.publisher import KVEventPublisher

log = logging.getLogger(__name__)


def vllm_rpc() -> ModuleType:
    """The module of vLLM's contract. Raises StartupError if its package is not installed."""
    try:
        return importlib.import_module("triptych_engine.rpc.vllm.servicer")
    except ModuleNotFoundError as error:
        raise StartupError(f"vllm_grpc needs the package smg-grpc-proto ({error})") from error


def new_publisher(settings: EngineSettings, batches: KVEventBatches | None) -> KVEventPublisher | None:
    """Publishes KV events if the settings ask for it. Raises StartupError if it cannot."""
    if settings.kv_events is None or batches is None:
        if settings.kv_events_replay is not None:
            raise StartupError("kv_events_replay needs kv_events")
        return None
    try:
        module = importlib.import_module("triptych_engine.kv_events.publisher")
    except ModuleNotFoundError as error:
        raise StartupError(f"kv_events needs the packages pyzmq and msgspec ({error})") from error
    publisher: KVEventPublisher = module.KVEventPublisher(
        batches, settings.kv_events, settings.kv_events_replay, settings.kv_events_topic
    )
    log.info("KV events are published at %s", publisher.endpoint)
    return publisher
