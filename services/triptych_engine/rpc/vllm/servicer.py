"""`vllm.grpc.engine.VllmEngine` in front of the same step loop, for routers that know vLLM's engines: SMG.

The router tokenizes, applies chat templates, and finds stop strings. It takes text only.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from smg_grpc_proto.generated import common_pb2 as smg_pb2
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm_pb2
from smg_grpc_proto.generated import vllm_engine_pb2_grpc as vllm_grpc
from triptych.errors import InvalidRequestError
from triptych.v1 import common_pb2, engine_pb2
from triptych_common import __version__
from triptych_common.model.store import eos_token_ids, read_json, text_config

from triptych_engine.core import EngineCore
from triptych_engine.kv_events.batches import KVEventBatches
from triptych_engine.rpc.servicer import EngineServicer
from triptych_engine.rpc.vllm.convert import Sequences, engine_request
from triptych_engine.rpc.vllm.kv_events import KvEventRelay
from triptych_engine.rpc.vllm.tokenizer import archive, chunks
from triptych_engine.settings import EngineSettings

Context = grpc.aio.ServicerContext
add_to_server = vllm_grpc.add_VllmEngineServicer_to_server
DESCRIPTOR = vllm_pb2.DESCRIPTOR.services_by_name["VllmEngine"]


@dataclass(frozen=True)
class _Served:
    core: EngineCore
    model: common_pb2.ModelInfo
    path: Path
    settings: EngineSettings
    generates: bool


class VllmServicer(vllm_grpc.VllmEngineServicer):
    """Answers from the engine's own servicer. Calls before `attach` are refused as unavailable.

    Args:
        engine: takes the requests.
        num_live: returns the number of live requests.
        kv_events: what happens to the prefix cache.
    """

    def __init__(self, engine: EngineServicer, num_live: Callable[[], int], kv_events: KVEventBatches) -> None:
        self._engine, self._num_live = engine, num_live
        self._kv_events = KvEventRelay(kv_events)
        self._served: _Served | None = None
        self._started_s = time.monotonic()
        self._archive: asyncio.Future[bytes] | None = None

    def attach(
        self, core: EngineCore, model: common_pb2.ModelInfo, path: Path, settings: EngineSettings, *, generates: bool
    ) -> None:
        """Answer from now on."""
        self._served = _Served(core, model, path, settings, generates)

    @property
    def _here(self) -> _Served:
        self._engine.check_accepting()
        assert self._served is not None  # noqa: S101 - attached before requests are accepted
        return self._served

    async def Generate(self, request: vllm_pb2.GenerateRequest, context: Context) -> AsyncIterator[vllm_pb2.GenerateResponse]:
        own = engine_request(request)
        sequences = Sequences(request, own.prompt_token_ids)
        made: Any = self._engine.Generate(engine_pb2.GenerateRequest(request=own), context)
        async with aclosing(made) as outputs:
            async for message in outputs:
                for response in sequences.responses(message.output):
                    yield response

    async def Embed(self, request: vllm_pb2.EmbedRequest, context: Context) -> vllm_pb2.EmbedResponse:
        if not request.tokenized.input_ids:
            raise InvalidRequestError("tokenized is needed", field="tokenized")
        own = engine_pb2.EngineRequest(request_id=request.request_id, prompt_token_ids=request.tokenized.input_ids)
        message = engine_pb2.EngineServiceEmbedRequest(requests=[own], pooling=common_pb2.PoolingParams(task=common_pb2.TASK_EMBED))
        answer = await self._engine.Embed(message, context)
        values = np.frombuffer(answer.embeddings[0].inline, np.float32).tolist()
        return vllm_pb2.EmbedResponse(embedding=values, prompt_tokens=answer.usage.prompt_tokens, embedding_dim=len(values))

    async def Abort(self, request: vllm_pb2.AbortRequest, context: Context) -> vllm_pb2.AbortResponse:
        # It may come after the request's end.
        await self._engine.Abort(engine_pb2.AbortRequest(request_ids=request.request_ids), context)
        return vllm_pb2.AbortResponse()

    async def HealthCheck(self, request: vllm_pb2.HealthCheckRequest, context: Context) -> vllm_pb2.HealthCheckResponse:
        refusal = self._engine.refusal
        return vllm_pb2.HealthCheckResponse(healthy=refusal is None, message=refusal or "Health")

    async def FlushCache(self, request: smg_pb2.FlushCacheRequest, context: Context) -> smg_pb2.FlushCacheResponse:
        num_blocks = await asyncio.wrap_future(self._here.core.reset_prefix_cache())
        return smg_pb2.FlushCacheResponse(success=True, message=f"{num_blocks} blocks")

    async def GetModelInfo(self, request: vllm_pb2.GetModelInfoRequest, context: Context) -> vllm_pb2.GetModelInfoResponse:
        here = self._here
        config: dict[str, Any] = read_json(here.path / "config.json")
        text = text_config(config)
        sampling = {field.name: value for field, value in here.model.capabilities.default_sampling.ListFields()}
        return vllm_pb2.GetModelInfoResponse(
            model_path=here.model.name,
            is_generation=here.generates,
            max_context_length=here.model.max_model_len,
            max_req_input_len=here.model.max_model_len,
            vocab_size=here.model.vocab_size,
            served_model_name=here.model.name,
            tokenizer_path=here.model.name,
            model_type=str(config.get("model_type", "")),
            architectures=config.get("architectures") or [],
            eos_token_ids=eos_token_ids(here.path),
            pad_token_id=_number(text.get("pad_token_id")),
            bos_token_id=_number(text.get("bos_token_id")),
            default_sampling_params_json=json.dumps(sampling) if sampling else "",
        )

    async def GetServerInfo(self, request: vllm_pb2.GetServerInfoRequest, context: Context) -> vllm_pb2.GetServerInfoResponse:
        here = self._here
        return vllm_pb2.GetServerInfoResponse(
            active_requests=self._num_live(),
            uptime_seconds=time.monotonic() - self._started_s,
            server_type="vllm-grpc",
            data_parallel_size=1,
            block_size=here.core.load.block_size,
            max_num_seqs=here.settings.max_num_seqs,
            constrained_decoding_start="first_token",
        )

    async def GetLoads(self, request: vllm_pb2.GetLoadsRequest, context: Context) -> vllm_pb2.GetLoadsResponse:
        here, load = self._here, self._here.core.load
        used = load.num_blocks - load.num_free_blocks
        one = vllm_pb2.SchedulerLoad(
            num_running_reqs=load.num_running,
            num_waiting_reqs=load.num_waiting,
            num_total_reqs=load.num_running + load.num_waiting,
            num_used_tokens=used * load.block_size,
            max_total_num_tokens=load.num_blocks * load.block_size,
            token_usage=used / load.num_blocks,
            cache_hit_rate=load.prefix_cache_hits / max(1, load.prefix_cache_queries),
            utilization=load.num_running / here.settings.max_num_seqs,
            max_running_requests=here.settings.max_num_seqs,
        )
        now = datetime.now(UTC).isoformat()
        return vllm_pb2.GetLoadsResponse(timestamp=now, version=__version__, dp_rank_count=1, loads=[one])

    async def GetTokenizer(
        self, request: smg_pb2.GetTokenizerRequest, context: Context
    ) -> AsyncIterator[smg_pb2.GetTokenizerChunk]:
        if self._archive is None or (self._archive.done() and self._archive.exception() is not None):
            self._archive = asyncio.ensure_future(asyncio.to_thread(archive, self._here.path))
        for chunk in chunks(await asyncio.shield(self._archive)):
            yield chunk

    async def SubscribeKvEvents(
        self, request: smg_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[smg_pb2.KvEventBatch]:
        # vLLM's servicer reads the ZeroMQ socket, and answers UNIMPLEMENTED without one; a router then guesses for ever. Here the
        # events are in the same process, so they come without `--kv-events`, too.
        self._engine.check_accepting()
        subscription = self._kv_events.subscribe(request.start_sequence_number)
        if subscription is None:
            await context.abort(grpc.StatusCode.OUT_OF_RANGE, "these batches are not kept; subscribe from 0")
        assert subscription is not None  # noqa: S101 - `abort` does not return
        try:
            await context.send_initial_metadata(())  # the router waits for it, and the first event may be long in coming
            async for message in subscription.messages():
                yield message
            await context.abort(grpc.StatusCode.DATA_LOSS, "the subscriber reads too slowly; subscribe from 0")
        finally:
            self._kv_events.leave(subscription)


def _number(value: Any) -> int:
    """A token id of a configuration, which may be a list or missing."""
    return int((value[0] if isinstance(value, list) else value) or 0)
