"""Wires the encoder together: settings -> towers -> device loop and pool -> pipeline -> gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import torch
from prometheus_client import Metric
from triptych.errors import ServiceUnavailableError, UnsupportedModelError
from triptych.v1 import common_pb2, encoder_pb2, encoder_pb2_grpc
from triptych_common.host.cores import default_encoder_threads, num_idle_cores, num_usable_cores
from triptych_common.host.memory import resident_memory, return_free_memory
from triptych_common.model import store as model_store
from triptych_common.rpc.control import State
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.server import ServiceServer

from triptych_encoder.cache.embedding_cache import EmbeddingCache
from triptych_encoder.cache.evictions import EvictionFeed
from triptych_encoder.cache.item import EncodedItem
from triptych_encoder.cache.store import SharedStore
from triptych_encoder.encoding_queue import QueueLimits
from triptych_encoder.media.preprocess import Preprocessor, PreprocessResult
from triptych_encoder.metrics import families
from triptych_encoder.pipeline import EncodingPipeline
from triptych_encoder.rpc.servicer import EncoderServicer
from triptych_encoder.settings import EncoderSettings
from triptych_encoder.tower.device_loop import DeviceLoop
from triptych_encoder.tower.loading import LoadedTowers, load_config, load_towers
from triptych_encoder.tower.tower import Tower
from triptych_encoder.tower.warm_up import warm_up

log = logging.getLogger(__name__)
_DESCRIPTOR = encoder_pb2.DESCRIPTOR.services_by_name["EncoderService"]


@dataclass(frozen=True)
class _Loaded:
    tower: Tower
    preprocessor: Preprocessor
    modalities: tuple[common_pb2.Modality, ...]
    embedding_fingerprint: bytes
    may_share_batch: bool


def _tower(towers: LoadedTowers) -> Tower:
    return Tower(towers.model, towers.device, towers.dtype, towers.embedding_dtype)


class EncoderService:
    """One encoder process. It answers the control port at once, and serves requests once its towers are loaded."""

    def __init__(self, settings: EncoderSettings) -> None:
        self._settings = settings
        self._state = State.SERVER_STATE_STARTING
        self._model: common_pb2.ModelInfo | None = None
        self._pipeline: EncodingPipeline | None = None
        self._device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
        )
        #: Reads them from disk, as at the start.
        self._read_towers: Callable[[], LoadedTowers]
        self._evictions = EvictionFeed()
        tls = Tls.of(settings.tls_dir, Role.ENCODER)
        self._server = ServiceServer("encoder", settings, [_DESCRIPTOR], self._register, self, self._metrics, tls=tls)
        self._servicer = EncoderServicer(
            self._evictions,
            settings.max_items_per_request,
            lambda: self._server.identity.describe(self._state),
            self._server.tracer,
        )
        is_cpu = self._device.type == "cpu"
        self._device_loop = DeviceLoop(
            settings.max_batch_embeddings or (256 if is_cpu else 16_384),
            self._lower_priority,
            self._use_idle_cores if is_cpu and settings.num_threads is None else lambda: None,
        )
        self._pool = ThreadPoolExecutor(settings.num_preprocess_threads, "preprocess", initializer=self._lower_priority)

    # -- Controllable -----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> common_pb2.ServerState:
        return self._state

    @property
    def port(self) -> int:
        """The actual port."""
        return self._server.port

    @property
    def control_port(self) -> int:
        """The actual control port."""
        return self._server.control_port

    @property
    def metrics_port(self) -> int | None:
        """The actual port of the metrics; None while they are off."""
        return self._server.metrics_port

    @property
    def num_live_requests(self) -> int:
        return len(self._pipeline.queue) if self._pipeline is not None else 0

    def model_info(self) -> common_pb2.ModelInfo | None:
        return self._model

    async def drain(self, timeout_s: float) -> bool:
        """Stop encoding. Cached embeddings can still be fetched."""
        pipeline = self._loaded()
        if self._state == State.SERVER_STATE_SLEEPING:
            return True
        self._servicer.refuse("the encoder is draining")
        self._state = State.SERVER_STATE_DRAINING
        await self._server.health.set_ready(False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await pipeline.queue.wait_idle()
        return not len(pipeline.queue)

    async def reset_cache(self) -> int:
        return self._loaded().cache.evict()

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        cache = self._loaded().cache
        await self.drain(timeout_s)
        self._servicer.refuse("the encoder is asleep")
        self._state = State.SERVER_STATE_SLEEPING
        before, resident = cache.used_bytes, resident_memory()
        cache.evict()
        if not unload:
            return before - cache.used_bytes
        await asyncio.wrap_future(self._device_loop.call(self._device_loop.detach))
        gc.collect()
        return_free_memory()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        return max(0, resident - resident_memory())

    async def wake_up(self) -> None:
        self._loaded()
        if not self._device_loop.has_tower:
            towers = await asyncio.wrap_future(self._device_loop.call(self._read_towers))
            self._device_loop.attach(_tower(towers))
        self._servicer.accept()
        self._state = State.SERVER_STATE_SERVING
        await self._server.health.set_ready(True)

    def _loaded(self) -> EncodingPipeline:
        if self._pipeline is None:
            raise ServiceUnavailableError("the encoder is loading its model", retry_after_s=5.0)
        return self._pipeline

    # -- lifecycle --------------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event, on_ready: asyncio.Event | None = None) -> None:
        """Serve until `stop` is set. Raises StartupError when the service cannot start.

        Args:
            on_ready: set once requests are accepted.
        """
        settings = self._settings
        if self._device.type == "cpu":
            torch.set_num_threads(settings.num_threads or default_encoder_threads(num_usable_cores()))
        path = await asyncio.to_thread(model_store.resolve_model, settings.model, model_store.WEIGHT_PATTERNS)
        name = settings.served_model_name or model_store.served_name(settings.model)
        model = model_store.model_info(path, name, settings.max_model_len)
        await self._server.start()
        self._device_loop.start()
        try:
            loaded = await self._load(path, name, stop)
            if loaded is not None:
                self._serve(loaded, model)
                del loaded  # the towers are the device loop's, which gives them back
                await self._server.health.set_ready(True)
                if on_ready is not None:
                    on_ready.set()
                await stop.wait()
        finally:
            self._servicer.refuse("the encoder is stopping")
            await self._server.stop()
            if self._pipeline is not None:
                await self._pipeline.close()
            self._pool.shutdown(wait=False, cancel_futures=True)
            await asyncio.to_thread(self._device_loop.stop)

    async def _load(self, path: Path, name: str, stop: asyncio.Event) -> _Loaded | None:
        """Load in the device thread. None if the service was told to stop meanwhile."""
        loading = asyncio.wrap_future(self._device_loop.call(lambda: self._load_and_warm_up(path, name)))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            # It fails, or ends, after the pool of this process was shut down. Nobody wants its result.
            loading.add_done_callback(lambda load: load.cancelled() or load.exception())
            return None
        return loading.result()

    def _load_and_warm_up(self, path: Path, name: str) -> _Loaded:
        settings = self._settings
        config = load_config(path, name)
        dtype = None if settings.dtype == "auto" else getattr(torch, settings.dtype)
        self._read_towers = partial(load_towers, path, name, config, dtype=dtype, device=self._device)
        towers = self._read_towers()
        tower = _tower(towers)
        preprocessor = Preprocessor(path, config, dataclasses.replace(settings.media_limits, max_decode_s=settings.max_decode_s))
        modalities = tuple(modality for modality in self._load_in_pool(preprocessor) if modality in tower.modalities)
        if not modalities:
            raise UnsupportedModelError(f"{name} ({config.model_type}) has towers for nothing that this encoder can read")

        def prepare(*item: Any) -> PreprocessResult:
            return self._pool.submit(preprocessor.prepare, *item).result()

        return _Loaded(tower, preprocessor, modalities, towers.embedding_fingerprint, warm_up(tower, prepare, modalities, name))

    def _load_in_pool(self, preprocessor: Preprocessor) -> tuple[common_pb2.Modality, ...]:
        """Load the processor in each thread of the pool. Returns the modalities that it can preprocess."""
        num_threads = self._settings.num_preprocess_threads
        together = threading.Barrier(num_threads)

        def load() -> tuple[common_pb2.Modality, ...]:
            together.wait()  # so that each thread loads exactly once
            return preprocessor.load()

        loads = [self._pool.submit(load) for _ in range(num_threads)]
        modalities = [done.result() for done in loads]
        return modalities[0]

    def _serve(self, loaded: _Loaded, model: common_pb2.ModelInfo) -> None:
        settings = self._settings
        self._device_loop.attach(loaded.tower, alone=not loaded.may_share_batch)
        cache = EmbeddingCache[EncodedItem](settings.cache_memory, self._evictions.publish)
        store = SharedStore(settings.store_url, settings.store_ttl_s, settings.cache_memory) if settings.store_url else None
        self._pipeline = EncodingPipeline(
            cache,
            loaded.preprocessor,
            self._device_loop,
            self._pool,
            store,
            QueueLimits(settings.max_queue, settings.max_queue_bytes, settings.max_prepared),
        )
        self._model = model
        description = encoder_pb2.DescribeResponse(
            model=model, embedding_fingerprint=loaded.embedding_fingerprint, modalities=loaded.modalities
        )
        self._servicer.attach(self._pipeline, description)
        self._state = State.SERVER_STATE_SERVING
        names = ", ".join(common_pb2.Modality.Name(modality).removeprefix("MODALITY_").lower() for modality in loaded.modalities)
        log.info("ready: %s, %s, embedding fingerprint %s", model.name, names, loaded.embedding_fingerprint.hex()[:12])

    def _register(self, server: grpc.aio.Server) -> None:
        encoder_pb2_grpc.add_EncoderServiceServicer_to_server(self._servicer, server)

    def _metrics(self) -> list[Metric]:
        return families(self._pipeline) if self._pipeline is not None else []

    @staticmethod
    def _use_idle_cores() -> None:
        """Use the encoder's share of the cores for the next batch, or all idle cores if those are more.

        A batch ends within a fraction of a second. Text generation that starts meanwhile waits no longer than that.
        """
        num_cores = num_usable_cores()
        num_threads = max(default_encoder_threads(num_cores), num_idle_cores(num_cores))
        if num_threads != torch.get_num_threads():
            torch.set_num_threads(num_threads)

    def _lower_priority(self) -> None:
        """Lower the priority of this thread and of the threads that it starts, so that an engine on the same cores runs first."""
        niceness = self._settings.niceness
        if niceness is None:
            niceness = 10 if self._device.type == "cpu" else 0
        if niceness and hasattr(os, "setpriority"):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
