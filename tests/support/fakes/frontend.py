"""A frontend with scripted replies: real servicers over real gRPC, without a model."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc_health.v1 import health_pb2_grpc
from triptych.errors import ModelNotFoundError, TriptychError
from triptych.v1 import (
    common_pb2,
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)
from triptych_common.rpc.control import Health
from triptych_common.rpc.security.tls import Tls
from triptych_common.telemetry.logs import request_id_var

from support.fakes.session import SessionOverCalls
from support.grpc_server import serving

MODEL = common_pb2.ModelInfo(name="fake/model", fingerprint="0123456789abcdef", max_model_len=2048, vocab_size=100)
STOP = common_pb2.FINISH_REASON_STOP
Delta = generation_pb2.ChoiceDelta
PoolingRequest = generation_pb2.EmbedRequest | generation_pb2.ScoreRequest | generation_pb2.ClassifyRequest
_PROMPT_ONLY = common_pb2.Usage(prompt_tokens=5)


@dataclass
class Script:
    """The frontend's responses to one generation call.

    Args:
        choices: the deltas of each choice. The choices take turns, with one delta per response. FINAL mode sends a choice at once.
        usage, timings, media: sent with the last response.
        error: raised after `error_after` responses.
        gate: if set, each response waits for a permit.
    """

    choices: list[list[Delta]]
    usage: common_pb2.Usage = field(default_factory=lambda: common_pb2.Usage(prompt_tokens=7, completion_tokens=3, cached_tokens=2))
    timings: common_pb2.Timings | None = None
    media: list[generation_pb2.MediaReport] = field(default_factory=list)
    error: BaseException | None = None
    error_after: int = 0
    gate: asyncio.Semaphore | None = None


def text_deltas(*texts: str, index: int = 0, **last: object) -> list[Delta]:
    """One delta per text. The last one has a finish reason, by default STOP."""
    deltas = [Delta(index=index, text=text) for text in texts]
    deltas[-1].MergeFrom(Delta(**({"finish_reason": STOP} | last)))
    return deltas


def says(*texts: str, **options: object) -> Script:
    """A script with one choice."""
    return Script([text_deltas(*texts)], **options)


class FakeFrontend(
    SessionOverCalls,
    preprocess_pb2_grpc.PreprocessServiceServicer,
    detokenize_pb2_grpc.DetokenizeServiceServicer,
):
    """Plays `script`, or the script that a callable returns for the request, and records the requests."""

    def __init__(self) -> None:
        #: What it serves.
        self.model = MODEL
        #: If set, ListModels waits for it.
        self.list_models_gate: asyncio.Event | None = None
        #: How busy it says that it is.
        self.load = generation_pb2.GetLoadResponse(instance=self.instance)
        self.script: Script | Callable[[generation_pb2.CompleteRequest], Script] = says("Hel", "lo")
        self.requests: list[generation_pb2.ChatRequest | generation_pb2.CompleteRequest] = []
        self.preprocessed: list[preprocess_pb2.PreprocessRequest] = []
        self.request_ids: list[str] = []
        self.contexts = []
        self.output_modes: list[generation_pb2.OutputMode] = []
        #: upload id -> the file
        self.uploads: dict[str, bytes] = {}
        self.num_responses = 0
        self.num_live = 0
        self.was_cancelled = asyncio.Event()
        #: Receives one item per generation request.
        self.arrivals: asyncio.Queue[str] = asyncio.Queue()
        self.health = Health(())
        self.pooling_requests: list[PoolingRequest] = []
        #: Raised by each pooling request; and what each waits for.
        self.pooling_error: TriptychError | None = None
        self.pooling_gate: asyncio.Event | None = None

    @property
    def request(self) -> generation_pb2.ChatRequest | generation_pb2.CompleteRequest:
        """The last generation request."""
        return self.requests[-1]

    def register(self, server: grpc.aio.Server) -> None:
        """Add all its services to a server."""
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, server)
        preprocess_pb2_grpc.add_PreprocessServiceServicer_to_server(self, server)
        detokenize_pb2_grpc.add_DetokenizeServiceServicer_to_server(self, server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health.servicer, server)

    async def ChatStream(
        self, request: generation_pb2.ChatStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        async for choices, last in self._play(request.chat, request.output_mode):
            yield generation_pb2.ChatStreamResponse(model=request.chat.model, choices=choices, **last)

    async def CompleteStream(
        self, request: generation_pb2.CompleteStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.CompleteStreamResponse]:
        async for choices, last in self._play(request.complete, request.output_mode):
            last.pop("media", None)
            yield generation_pb2.CompleteStreamResponse(model=request.complete.model, choices=choices, **last)

    async def Describe(
        self, request: generation_pb2.GenerationServiceDescribeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.GenerationServiceDescribeResponse:
        return generation_pb2.GenerationServiceDescribeResponse(instance=self.instance, models=[self.model])

    async def GetLoad(
        self, request: generation_pb2.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.GetLoadResponse:
        return self.load

    async def UploadMedia(
        self, request_iterator: AsyncIterator[generation_pb2.UploadMediaRequest], context: grpc.aio.ServicerContext
    ) -> generation_pb2.UploadMediaResponse:
        content = b"".join([message.data async for message in request_iterator])
        upload_id = f"upload {len(self.uploads)}"
        self.uploads[upload_id] = content
        return generation_pb2.UploadMediaResponse(upload_id=upload_id, expires_s=60)

    async def ListModels(
        self, request: generation_pb2.ListModelsRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.ListModelsResponse:
        if self.list_models_gate is not None:
            await self.list_models_gate.wait()
        return generation_pb2.ListModelsResponse(models=[self.model])

    async def Embed(self, request: generation_pb2.EmbedRequest, context: grpc.aio.ServicerContext) -> generation_pb2.EmbedResponse:
        """Vectors [index, 0.5] of each input, for TOKEN_EMBED two per input."""
        await self._take(request)
        each = 2 if request.task == common_pb2.TASK_TOKEN_EMBED else 1
        values = [number for index in range(len(request.inputs)) for number in (index, 0.5) * each]
        packed = common_pb2.Tensor(
            dtype=common_pb2.DATA_TYPE_FLOAT32, shape=[len(values) // 2, 2], inline=array("f", values).tobytes()
        )
        vectors = [each] * len(request.inputs)
        return generation_pb2.EmbedResponse(model=self.model.name, packed=packed, packed_vectors=vectors, usage=_PROMPT_ONLY)

    async def Score(self, request: generation_pb2.ScoreRequest, context: grpc.aio.ServicerContext) -> generation_pb2.ScoreResponse:
        """The length of each document."""
        await self._take(request)
        scores = [len(document.text) for document in request.documents]
        return generation_pb2.ScoreResponse(model=self.model.name, scores=scores, usage=_PROMPT_ONLY)

    async def Classify(
        self, request: generation_pb2.ClassifyRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.ClassifyResponse:
        """The second of two labels."""
        await self._take(request)
        each = [generation_pb2.Classification(values=[0.25, 0.75]) for _ in request.inputs]
        return generation_pb2.ClassifyResponse(
            model=self.model.name, classifications=each, labels=["no", "yes"], usage=_PROMPT_ONLY
        )

    async def _take(self, request: PoolingRequest) -> None:
        self.pooling_requests.append(request)
        if request.model not in ("", self.model.name):
            raise ModelNotFoundError(f"no model {request.model!r} here; served are: {self.model.name}")
        if self.pooling_error is not None:
            raise self.pooling_error
        if self.pooling_gate is not None:
            try:
                await self.pooling_gate.wait()
            except asyncio.CancelledError:
                self.was_cancelled.set()
                raise

    async def Preprocess(
        self, request: preprocess_pb2.PreprocessRequest, context: grpc.aio.ServicerContext
    ) -> preprocess_pb2.PreprocessResponse:
        self.preprocessed.append(request)
        if request.chat.model not in ("", self.model.name):
            raise ModelNotFoundError(f"no model {request.chat.model!r} here; served are: {self.model.name}")
        parts = [part for message in request.chat.messages for part in message.content]
        text = "".join(part.text for part in parts)
        items = [part.media for part in parts if part.HasField("media")]
        return preprocess_pb2.PreprocessResponse(
            prompt=text,
            token_ids=text.encode(),
            max_model_len=MODEL.max_model_len,
            media=[common_pb2.MediaRef(modality=item.modality, key=item.url.encode()) for item in items],
            # Two ranges per item.
            placeholders=[
                common_pb2.PlaceholderRange(offset=10 * index + 5 * half, length=2, media_index=index)
                for index in range(len(items))
                for half in range(2)
            ],
        )

    async def Tokenize(
        self, request: preprocess_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> preprocess_pb2.TokenizeResponse:
        ids = ([] if request.HasField("add_special_tokens") and not request.add_special_tokens else [0]) + list(
            request.text.encode()
        )
        return preprocess_pb2.TokenizeResponse(
            token_ids=ids, tokens=[chr(token) for token in ids], max_model_len=MODEL.max_model_len
        )

    async def Detokenize(
        self, request: detokenize_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> detokenize_pb2.DetokenizeResponse:
        return detokenize_pb2.DetokenizeResponse(text="".join(chr(token) for token in request.token_ids if token < 0xD800))

    async def DetokenizeStream(
        self, request_iterator: AsyncIterator[detokenize_pb2.DetokenizeStreamRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[detokenize_pb2.DetokenizeStreamResponse]:
        async for request in request_iterator:
            yield detokenize_pb2.DetokenizeStreamResponse(text="".join(map(chr, request.token_ids)))
        yield detokenize_pb2.DetokenizeStreamResponse(text="end")

    async def _play(
        self, request: generation_pb2.ChatRequest | generation_pb2.CompleteRequest, output_mode: generation_pb2.OutputMode
    ) -> AsyncIterator[tuple[list[Delta], dict[str, Any]]]:
        self.requests.append(request)
        self.output_modes.append(output_mode)
        self.request_ids.append(request_id_var.get())
        self.arrivals.put_nowait(request_id_var.get())
        if request.model != self.model.name:
            raise ModelNotFoundError(f"no model {request.model!r} here; served are: {self.model.name}")
        script = self.script(request) if callable(self.script) else self.script
        is_final = output_mode == generation_pb2.OUTPUT_MODE_FINAL
        responses = script.choices if is_final else [[delta] for delta in _in_turns(script.choices)]
        self.num_live += 1
        try:
            for number, deltas in enumerate(responses):
                await self._permit(script, number)
                is_last = number == len(responses) - 1
                yield deltas, {"usage": script.usage, "timings": script.timings, "media": script.media} if is_last else {}
                self.num_responses += 1
            await self._permit(script, len(responses))
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        finally:
            self.num_live -= 1

    async def _permit(self, script: Script, number: int) -> None:
        if script.error is not None and number == script.error_after:
            raise script.error
        if script.gate is not None:
            await script.gate.acquire()


def _in_turns(choices: list[list[Delta]]) -> list[Delta]:
    longest = max(len(deltas) for deltas in choices)
    return [deltas[step] for step in range(longest) for deltas in choices if step < len(deltas)]


@asynccontextmanager
async def running(frontend: FakeFrontend, port: int = 0, ready: bool = True, tls: Tls | None = None) -> AsyncIterator[str]:
    """Serve the fake. Yields its address."""
    await frontend.health.set_alive()
    await frontend.health.set_ready(ready)
    async with serving(frontend.register, port, tls) as address:
        yield address


def fails(error: TriptychError, after: int = 0) -> Script:
    """A script that raises the error after this many responses."""
    return says("a", "b", "c", error=error, error_after=after)
