"""Wires the frontend together and runs it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
from triptych.errors import StartupError
from triptych.v1 import common_pb2, generation_pb2
from triptych_common.cluster.pool import Pool
from triptych_common.cluster.resolution import resolver_of
from triptych_common.constraints.spec import KINDS
from triptych_common.host.garbage import startup_objects_frozen
from triptych_common.host.memory import return_large_blocks
from triptych_common.limits import MAX_CHOICES, MAX_LOGPROBS
from triptych_common.model.pooling import served_model
from triptych_common.model.store import is_encoder_decoder, model_info, resolve_model, served_name, why_text_only
from triptych_common.rpc.control import State, cannot_sleep
from triptych_common.rpc.generation import SERVICES, add_services
from triptych_common.rpc.security.roles import Role
from triptych_common.rpc.security.tls import Tls
from triptych_common.rpc.server import ServiceServer, run_service

from triptych_frontend.conversation.answer_format import AnswerFormats
from triptych_frontend.conversation.formats.known import choose_formats
from triptych_frontend.encoders.client import EncoderClient
from triptych_frontend.encoders.pool import EncoderPool
from triptych_frontend.engines.connection import EngineConnection
from triptych_frontend.engines.router import EngineRouter
from triptych_frontend.generation.admission import Admission
from triptych_frontend.generation.generator import Generator
from triptych_frontend.generation.pooling.batches import EngineBatches
from triptych_frontend.generation.pooling.embedder import Embedder
from triptych_frontend.generation.pooling.inputs import PoolingInputs
from triptych_frontend.generation.preparation.options import sampling_defaults
from triptych_frontend.generation.preparation.prepare import CallPreparer
from triptych_frontend.generation.statistics import CallStatistics
from triptych_frontend.media.fetch import MediaFetcher
from triptych_frontend.media.preparer import MediaPreparer
from triptych_frontend.media.processors.loading import default_chat_template, load_media_processor
from triptych_frontend.media.processors.placeholders import PlaceholderExpander
from triptych_frontend.media.processors.window import AudioWindow
from triptych_frontend.metrics import FrontendMetrics
from triptych_frontend.no_torch import forbid_torch
from triptych_frontend.output.chain import OutputChains
from triptych_frontend.prompt.chat_template import ChatTemplate
from triptych_frontend.prompt.preprocess import Preprocessor
from triptych_frontend.prompt.speech import load_speech_prompts
from triptych_frontend.rpc.load import load_of
from triptych_frontend.rpc.servicers import FrontendStages, GenerationServicer
from triptych_frontend.served_model import ServedModel
from triptych_frontend.settings import FrontendSettings
from triptych_frontend.tokens.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Frontend:
    """One frontend: its model's tokenizer and template, its engines and encoders, its servers.

    Args:
        settings: the settings; port 0 takes free ports.

    Raises:
        StartupError: the model, its tokenizer, its template or its certificate cannot be used.
    """

    def __init__(self, settings: FrontendSettings) -> None:
        path = resolve_model(settings.model)
        name = settings.served_model_name or served_name(settings.model)
        self._tokenizer, expander, why_text_only = _load_text_and_media(path, settings.max_image_pixels)
        info, pooling = served_model(path, name, settings.max_model_len, settings.task)
        info.vocab_size = info.vocab_size or len(self._tokenizer)
        if pooling is not None and pooling.lowercases:
            self._tokenizer.lowercase()
        if pooling is None:
            capabilities = common_pb2.Capabilities(constraints=KINDS, max_choices=MAX_CHOICES, max_logprobs=MAX_LOGPROBS)
            info.capabilities.MergeFrom(capabilities)
        if expander is not None:
            if settings.encoder_addresses:
                info.capabilities.modalities.extend(sorted(expander.modalities))
                info.capabilities.max_media_items = settings.max_media_items
            expander.max_embeds = info.max_model_len
        self._tls = Tls.of(settings.tls_dir, Role.FRONTEND)
        self._model = ServedModel(info)
        source = settings.chat_template.read_text(encoding="utf-8") if settings.chat_template else None
        speech = load_speech_prompts(path, self._tokenizer, info.max_model_len)
        has_places = expander is not None and speech is None
        placeholders = {one: expander.placeholder(one) for one in expander.modalities} if expander and has_places else {}
        embed_token_ids = expander.embed_token_ids if expander else frozenset()
        template = ChatTemplate(self._tokenizer, source, placeholders, embed_token_ids)
        self.server = ServiceServer(
            "frontend",
            settings,
            SERVICES,
            self.register,
            self,
            lambda: self._metrics.families(),
            tls=self._tls,
            sampling_ratio=settings.trace_sampling_ratio,
        )
        tracer = self.server.tracer
        self._admission = Admission(settings.max_live_requests)
        # A text model needs no encoder, even if shared settings name one.
        # Encoders know nothing of pooling, which is in the fingerprint of a model that embeds.
        files = model_info(path, name, settings.max_model_len)
        self._encoders = EncoderPool(settings.encoder_addresses if expander is not None else (), files, tls=self._tls)
        self._encoder_client = EncoderClient(self._encoders, settings.encode_timeout_s, tracer)
        self._media = MediaPreparer(expander, MediaFetcher(settings), settings, self._encoders, why_text_only, tracer)
        vocab_size = self._model.info.vocab_size
        tool_source = template.tool_source if template.takes_tools else None
        tools, reasoning = choose_formats(template.source or "", tool_source, self._tokenizer, settings)
        if tools is not None:
            template.traits = replace(template.traits, call_ids=tools.call_ids)
        info.capabilities.tools = template.takes_tools and tools is not None
        info.capabilities.reasoning = reasoning is not None
        self._preprocessor = Preprocessor(
            self._tokenizer,
            template,
            settings,
            vocab_size,
            self._media,
            can_reason=reasoning is not None,
            model_name=self._model.info.name,
            speech=speech,
        )
        info.capabilities.infill = self._preprocessor.can_infill
        self._engines = Pool(
            "engine",
            resolver_of(settings.engine_addresses, "engine", self._model.info.fingerprint),
            lambda address: EngineConnection(address, self._model.info, self._tls),
            self._engines_changed,
            self._tls,
        )
        defaults = sampling_defaults(path) if settings.generation_config == "auto" else common_pb2.SamplingParams()
        if defaults.ListFields():
            info.capabilities.default_sampling.CopyFrom(defaults)
        formats = AnswerFormats(self._tokenizer, tools, reasoning)
        self._router = engines = EngineRouter(self._engines, settings.routing)
        statistics = CallStatistics()
        self._metrics = FrontendMetrics(
            statistics, self._engines, engines.num_moved, self._encoders, self._encoder_client, self._media
        )
        self._generator = Generator(
            self._admission,
            self._model,
            CallPreparer(self._model, self._tokenizer, self._preprocessor, formats, defaults),
            engines,
            self._encoder_client,
            OutputChains(self._tokenizer),
            statistics,
            tracer,
        )
        self._generation = GenerationServicer(
            self._model,
            self._generator,
            Embedder(
                self._admission,
                self._model,
                PoolingInputs(self._preprocessor, self._model, pooling.prompt if pooling is not None else ""),
                EngineBatches(engines, self._encoder_client, tracer),
                pooling,
                statistics,
                tracer,
            ),
            self._media.uploads,
            self._identity,
            self._load,
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Add the servicers to a server."""
        stages = FrontendStages(self._admission, self._model, self._preprocessor, self._encoder_client)
        add_services(server, self._generation, stages)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Serve inside the block. Yields the task that keeps the connections; it never ends by itself."""
        await self.server.start()
        engines = asyncio.create_task(self._engines.run(), name="engines")
        encoders = asyncio.create_task(self._encoders.run(), name="encoders")
        try:
            if self._model.info.capabilities.constraints:
                # Now, because most frontends wait for their engine's weights: llguidance keeps the GIL for 0.2 s (49,152 tokens).
                self._preprocessor.constraints.warm_up()
            yield engines
        finally:
            self._admission.close()
            self._generation.refuse("the frontend is stopping")
            await self.server.stop()
            await self._router.close()
            await self._encoder_client.close()
            for task in (engines, encoders):
                task.cancel()
            await asyncio.gather(engines, encoders, return_exceptions=True)
            await self._media.fetcher.close()
            self._media.close()
            self._preprocessor.close()

    async def _engines_changed(self) -> None:
        self._model.follow([engine.model for engine in self._engines.ready])
        await self._report_readiness()

    async def _report_readiness(self) -> None:
        await self.server.health.set_ready(self.state == State.SERVER_STATE_SERVING)

    def _identity(self) -> common_pb2.Instance:
        return self.server.identity.describe(self.state)

    async def _load(self) -> generation_pb2.GetLoadResponse:
        load = await load_of(self._engines, self._encoders)
        load.instance.CopyFrom(self._identity())
        load.num_live_requests, load.idle_s = self.num_live_requests, self._admission.idle_s
        return load

    # Called by the control port, see triptych_common.rpc.control.Controllable.

    @property
    def state(self) -> common_pb2.ServerState:
        if self._admission.is_draining:
            return State.SERVER_STATE_DRAINING
        # An engine that does not answer keeps its connection, and would keep every request waiting.
        works = any(not engine.in_doubt.is_set() for engine in self._engines.ready)
        return State.SERVER_STATE_SERVING if works else State.SERVER_STATE_UNAVAILABLE

    @property
    def num_live_requests(self) -> int:
        return self._admission.num_live

    def model_info(self) -> common_pb2.ModelInfo:
        return self._model.info

    async def drain(self, timeout_s: float) -> bool:
        self._admission.close()
        self._generation.refuse("the frontend is draining and takes no more requests")
        await self._report_readiness()
        return await self._admission.wait_idle(timeout_s)

    async def reset_cache(self) -> int:
        return self._tokenizer.token_texts.clear()

    async def sleep(self, timeout_s: float, *, unload: bool = False) -> int:
        raise cannot_sleep("frontend")

    async def wake_up(self) -> None:
        self._admission.open()
        self._generation.accept()
        await self._report_readiness()


def _load_text_and_media(path: Path, max_pixels: int = 50_000_000) -> tuple[Tokenizer, PlaceholderExpander | None, str]:
    """The tokenizer, the placeholder expander, and, if there is no expander, the reason."""
    from transformers import AutoConfig  # late import: see no_torch

    tokenizer = Tokenizer.load(path)
    if is_encoder_decoder(path):
        return tokenizer, AudioWindow(path), ""
    if (why := why_text_only(path)) is not None:
        return tokenizer, None, why
    try:
        processor = load_media_processor(path, tokenizer.hf, max_pixels)
    except StartupError as error:
        # The model can still serve text.
        log.warning("media are refused: %s", error.message)
        return tokenizer, None, "this model's media processor does not run here"
    if processor is None:
        return tokenizer, None, "this model takes text only"
    if tokenizer.hf.chat_template is None:
        tokenizer.hf.chat_template = default_chat_template(processor)
    # Create it again, because processors add tokens.
    tokenizer = Tokenizer(tokenizer.hf)
    config = AutoConfig.from_pretrained(str(path), local_files_only=True)
    expander = PlaceholderExpander(processor, config, lambda text: tokenizer.encode(text, add_special_tokens=False))
    return tokenizer, expander, ""


def run(settings: FrontendSettings) -> None:
    """Run the frontend until SIGINT or SIGTERM."""
    forbid_torch()
    return_large_blocks()

    async def main(stop: asyncio.Event) -> None:
        with startup_objects_frozen():
            frontend = Frontend(settings)
        async with frontend.running() as connections:
            stopped = asyncio.create_task(stop.wait())
            await asyncio.wait([stopped, connections], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if connections.done():
                connections.result()  # raises the error that ended the task

    run_service("frontend", settings, main)
