"""Wires the engine together: settings, executor, scheduler, step loop, gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import Metric
from triptych.errors import ServiceUnavailableError, StartupError
from triptych.v1 import common_pb2, engine_pb2, engine_pb2_grpc, kv_pb2, kv_pb2_grpc
from triptych_common.cluster.encoder import EncoderConnection
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.constraints.spec import KINDS
from triptych_common.host.memory import resident_memory
from triptych_common.model import store as model_store
from triptych_common.model.pooling import PoolingModel, served_model
from triptych_common.rpc.control import State
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.server import ServiceServer

from triptych_engine.assembly import (
    fitting_context,
    kv_layout,
    make_scheduler,
    new_executor,
    new_host_memory,
    new_tier,
    schedules_ahead,
)
from triptych_engine.core import EngineCore, new_device_thread
from triptych_engine.executor.protocol import Executor, ExecutorInfo
from triptych_engine.extras import new_publisher, vllm_rpc
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.kv_offload.host_tier import HostTier
from triptych_engine.kv_transfer.sharing import BlockSharing
from triptych_engine.media.fetcher import EmbeddingFetcher, FetchStatistics
from triptych_engine.media.item import MediaTraits
from triptych_engine.metrics import EngineMetrics
from triptych_engine.rpc.adapter_watch import AdapterWatch
from triptych_engine.rpc.outbox import Outbox
from triptych_engine.rpc.servicer import EngineServicer
from triptych_engine.runner.lora.directory import LoraDirectory
from triptych_engine.settings import EngineSettings
from triptych_engine.startup import load_model, until_any, warm_up_constraints

log = logging.getLogger(__name__)
_DESCRIPTOR = engine_pb2.DESCRIPTOR.services_by_name["EngineService"]
_KV_DESCRIPTOR = kv_pb2.DESCRIPTOR.services_by_name["KvService"]


class EngineService:
    """One engine process. It answers control calls from the start, and serves requests once the model is loaded."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._state = State.SERVER_STATE_STARTING
        self._model: common_pb2.ModelInfo | None = None
        self._core: EngineCore | None = None
        self._fetcher: EmbeddingFetcher | None = None
        self._fetches = FetchStatistics()
        self._counts: EngineMetrics | None = None
        self._died = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._device_thread = new_device_thread()
        self._loop = asyncio.get_running_loop()
        self._tls = Tls.of(settings.tls_dir, Role.ENGINE)
        #: None if this engine has no second tier of the prefix cache.
        self._sharing = BlockSharing(settings, self._tls) if settings.host_memory_bytes else None
        descriptors = [
            _DESCRIPTOR,
            *([_KV_DESCRIPTOR] if self._sharing else []),
            *([vllm_rpc().DESCRIPTOR] if settings.vllm_grpc else []),
        ]
        self._server = ServiceServer("engine", settings, descriptors, self._register, self, self._metrics, tls=self._tls)
        self._outbox = Outbox(
            self._loop, lambda load: self._servicer.on_load(load), self._server.tracer, settings.stream_interval_ms / 1000
        )
        self._servicer = EngineServicer(self._outbox, lambda: self._server.identity.describe(self._state), self._server.tracer)
        #: None if nobody can ask for events: then the block pool records none.
        self._kv_events = KVEventBatches(self._loop) if settings.kv_events or settings.vllm_grpc else None
        self._vllm = (
            vllm_rpc().VllmServicer(self._servicer, lambda: self.num_live_requests, self._kv_events) if settings.vllm_grpc else None
        )
        #: Run until the engine stops.
        self._background: list[asyncio.Task[None]] = []
        self._warming: asyncio.Task[None] | None = None

    # -- Controllable -----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> common_pb2.ServerState:
        return self._state

    @property
    def num_live_requests(self) -> int:
        return self._outbox.num_live_requests

    @property
    def metrics_port(self) -> int | None:
        """The actual port of the metrics; None while they are off."""
        return self._server.metrics_port

    def model_info(self) -> common_pb2.ModelInfo | None:
        return self._model

    async def drain(self, timeout_s: float) -> bool:
        self._loaded()
        if self._state == State.SERVER_STATE_SLEEPING:
            return True
        self._servicer.refuse("the engine is draining")
        self._state = State.SERVER_STATE_DRAINING
        await self._server.health.set_ready(False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._outbox.wait_idle()
        return self.num_live_requests == 0

    async def reset_cache(self) -> int:
        core = self._loaded()
        if self._sharing is not None:
            await self._sharing.clear_disk()  # first: blocks come back from there
        return await asyncio.wrap_future(core.reset_prefix_cache())

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        core, before = self._loaded(), resident_memory()
        await self.drain(timeout_s)
        self._servicer.refuse("the engine is asleep")
        self._state = State.SERVER_STATE_SLEEPING
        # Also if the call is cancelled: the state already says that the engine sleeps.
        await asyncio.shield(asyncio.wrap_future(core.sleep(unload=unload)))
        return max(0, before - resident_memory())

    async def wake_up(self) -> None:
        core = self._loaded()
        await asyncio.wrap_future(core.wake_up())
        self._servicer.accept()
        self._state = State.SERVER_STATE_SERVING
        await self._server.health.set_ready(True)

    def _loaded(self) -> EngineCore:
        if self._core is None:
            raise ServiceUnavailableError("the engine is loading its model", retry_after_s=5.0)
        return self._core

    # -- lifecycle --------------------------------------------------------------------------------------------------------------

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Raises StartupError when it cannot."""
        settings = self._settings
        path = await asyncio.to_thread(model_store.resolve_model, settings.model, model_store.WEIGHT_PATTERNS)
        name = settings.served_model_name or model_store.served_name(settings.model)
        model, pooling = served_model(path, name, settings.max_model_len, settings.task)
        memory = new_host_memory(settings, pooling)
        executor = await asyncio.to_thread(new_executor, settings, model, path, pooling, self._on_worker_lost, memory)
        publisher = None
        await self._server.start()
        try:
            publisher = new_publisher(settings, self._kv_events)
            loaded = await load_model(executor, self._device_thread, stop)
            if loaded is not None:
                await self._serve(executor, model, path, pooling, loaded, new_tier(memory, loaded))
                if pooling is None and settings.simulate is None:
                    self._warming = self._keep(
                        warm_up_constraints(executor, self._outbox.wait_idle, lambda: self._state == State.SERVER_STATE_SERVING),
                        "constraints",
                    )
                await until_any(stop, self._died)
        finally:
            self._servicer.refuse("the engine is stopping")
            await self._server.stop()
            if self._warming is not None:
                self._warming.cancel()
            if self._core is not None:
                await asyncio.to_thread(self._core.stop)
            await asyncio.to_thread(executor.close)
            if publisher is not None:
                await publisher.close()
            if self._sharing is not None:
                await self._sharing.close()
            if self._fetcher is not None:
                await self._fetcher.close()
            for task in self._background:
                task.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)
            self._device_thread.shutdown(wait=False)
        if self._died.is_set():
            raise StartupError("the engine loop died; see the log above")

    async def _serve(
        self,
        executor: Executor,
        model: common_pb2.ModelInfo,
        path: Path,
        pooling: PoolingModel | None,
        loaded: ExecutorInfo,
        tier: HostTier | None,
    ) -> None:
        settings, traits = self._settings, loaded.media_traits
        model.max_model_len = fitting_context(
            model.max_model_len, loaded.num_blocks * loaded.block_size, is_explicit=settings.max_model_len is not None
        )
        model.vocab_size = loaded.vocab_size
        model.quantization = settings.quantization
        if settings.simulate is not None:
            del model.capabilities.modalities[:]
        elif pooling is None:
            model.capabilities.constraints.extend(KINDS)
        model.capabilities.continuation = pooling is None
        if isinstance(traits, MediaTraits):
            # Encoders know nothing of pooling, which is in the fingerprint of a model that embeds.
            files = await asyncio.to_thread(model_store.model_info, path, model.name, model.max_model_len)
            self._connect_encoders(files, traits)
        scheduler = make_scheduler(settings, loaded, model.max_model_len, tier, generates=pooling is None)
        self._core = EngineCore(
            scheduler,
            executor,
            self._outbox.publish,
            self._on_death,
            self._device_thread,
            self._fetcher,
            async_scheduling=schedules_ahead(settings, loaded),
            on_restart=self._on_restart,
        )
        if self._kv_events is not None:
            scheduler.kv_cache.pool.record_events()
            self._core.on_kv_events = self._kv_events.publish
        if tier is not None and self._sharing is not None:
            self._sharing.attach(scheduler.kv_cache, tier, model, kv_layout(model, loaded))
            self._servicer.preparation.blocks = self._sharing.fetcher
        self._counts = EngineMetrics(
            self._core,
            scheduler,
            self._outbox.statistics,
            self._fetches,
            model.name,
            loaded.embedding_bytes,
            self._kv_events,
            self._sharing,
        )
        self._core.start()
        self._model = model
        capacity = scheduler.kv_cache.capacity_tokens
        self._servicer.attach(self._core, model, capacity, traits, pooling)
        model.capabilities.lora = loaded.takes_loras
        if settings.lora_dir is not None and loaded.takes_loras:
            watch = AdapterWatch(LoraDirectory(settings.lora_dir), model, self._servicer.tell_model)
            self._servicer.on_lora = watch.loaded
            self._keep(watch.run(), "adapters")
        if self._vllm is not None:
            self._vllm.attach(self._core, model, path, settings, generates=pooling is None)
        self._state = State.SERVER_STATE_SERVING
        await self._server.health.set_ready(True)
        log.info("ready: %s, %d tokens of context, %d tokens of KV cache", model.name, model.max_model_len, capacity)

    def _connect_encoders(self, files: common_pb2.ModelInfo, traits: MediaTraits) -> None:
        encoders = Pool(
            "encoder",
            resolver_of(self._settings.encoder_addresses, "encoder", files.fingerprint),
            lambda address: EncoderConnection(address, files, tls=self._tls),
            tls=self._tls,
        )
        self._keep(encoders.run(), "encoders")
        self._fetcher = EmbeddingFetcher(
            encoders,
            traits,
            self._settings.embedding_timeout_s,
            lambda number, result: self._loaded().deliver(number, result),
            self._fetches,
            self._server.tracer,
        )

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        def note_failure(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("the task for %s ended: %s", name, error, exc_info=error)

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(note_failure)
        self._background.append(task)
        return task

    def _on_death(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._died.set)

    def _on_worker_lost(self) -> None:
        if self._core is not None:
            self._core.recover()
        else:
            self._loop.call_soon_threadsafe(self._died.set)

    def _on_restart(self, is_restarting: bool) -> None:
        self._loop.call_soon_threadsafe(self._restarts, is_restarting)

    def _restarts(self, is_restarting: bool) -> None:
        """The engine is not ready while its executor is being restored, unless it is not ready anyway."""
        before, after = State.SERVER_STATE_SERVING, State.SERVER_STATE_STARTING
        if not is_restarting:
            before, after = after, before
        if self._state == before:
            self._state = after
            task = self._loop.create_task(self._server.health.set_ready(not is_restarting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _register(self, server: grpc.aio.Server) -> None:
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self._servicer, server)
        if self._sharing is not None:
            kv_pb2_grpc.add_KvServiceServicer_to_server(self._sharing.servicer, server)
        if self._vllm is not None:
            vllm_rpc().add_to_server(self._vllm, server)

    def _metrics(self) -> list[Metric]:
        return self._counts.families() if self._counts is not None else []
