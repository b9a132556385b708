"""GenerationService: text from scripts."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from triptych.accumulators import ChatAccumulator, CompleteAccumulator
from triptych.errors import InvalidRequestError
from triptych.mock.v1 import mock_pb2
from triptych.v1 import common_pb2, generation_pb2, generation_pb2_grpc
from triptych_common.rpc.identity import Identity
from triptych_common.telemetry.logs import request_id_var

from triptych_mock.media import KnownMedia
from triptych_mock.play import Answer, Part, Player, play
from triptych_mock.pooling import classified, embedded, scored
from triptych_mock.rpc.seen import CallLog, current_call
from triptych_mock.rpc.session import MockSession
from triptych_mock.script import add_unknown_field, play_fault

Context = grpc.aio.ServicerContext
M = TypeVar("M", bound=Message)
Pooled = TypeVar("Pooled", generation_pb2.EmbedResponse, generation_pb2.ScoreResponse, generation_pb2.ClassifyResponse)
PoolingRequest = generation_pb2.EmbedRequest | generation_pb2.ScoreRequest | generation_pb2.ClassifyRequest
#: Most bytes of media reports in the trailing metadata.
_TRAILER_BYTES = 4096


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Plays each request's script."""

    def __init__(
        self, model: common_pb2.ModelInfo, player: Player, known_media: KnownMedia, log: CallLog, identity: Identity
    ) -> None:
        self._model = model
        self._player = player
        self._known_media = known_media
        self._log = log
        self._identity = identity

    async def Chat(self, request: generation_pb2.ChatRequest, context: Context) -> generation_pb2.ChatResponse:
        answer, whole = self._player.chat(request), ChatAccumulator()
        async for part in play(answer, True, _num_earlier(), context):
            whole.add(generation_pb2.ChatStreamResponse(**self._head(), **_fields(part)))
        _send_reports(answer, context)
        return _marked(whole.response, answer)

    async def Complete(self, request: generation_pb2.CompleteRequest, context: Context) -> generation_pb2.CompleteResponse:
        answer, whole = self._player.complete(request), CompleteAccumulator()
        async for part in play(answer, True, _num_earlier(), context):
            whole.add(generation_pb2.CompleteStreamResponse(**self._head(), **_fields(part)))
        _send_reports(answer, context)
        return _marked(whole.response, answer)

    async def ChatStream(
        self, request: generation_pb2.ChatStreamRequest, context: Context
    ) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        answer, head = self._player.chat(request.chat), self._head()
        async for part in play(answer, _is_final(request.output_mode), _num_earlier(), context):
            yield _marked(generation_pb2.ChatStreamResponse(**head, **_fields(part)), answer)
        _send_reports(answer, context)

    async def CompleteStream(
        self, request: generation_pb2.CompleteStreamRequest, context: Context
    ) -> AsyncIterator[generation_pb2.CompleteStreamResponse]:
        answer, head = self._player.complete(request.complete), self._head()
        async for part in play(answer, _is_final(request.output_mode), _num_earlier(), context):
            yield _marked(generation_pb2.CompleteStreamResponse(**head, **_fields(part)), answer)
        _send_reports(answer, context)

    async def Session(
        self, request_iterator: AsyncIterator[generation_pb2.GenerationServiceSessionRequest], context: Context
    ) -> AsyncIterator[generation_pb2.GenerationServiceSessionResponse]:
        session = MockSession(self._player, self._log)
        instance = self._identity.describe(common_pb2.SERVER_STATE_SERVING)
        async for response in session.run(request_iterator, instance):
            yield response

    async def UploadMedia(
        self, request_iterator: AsyncIterator[generation_pb2.UploadMediaRequest], context: Context
    ) -> generation_pb2.UploadMediaResponse:
        digest, num_bytes, num_came = hashlib.sha256(), 0, 0
        async for piece in request_iterator:
            if piece.HasField("header"):
                num_bytes = piece.header.num_bytes
            digest.update(piece.data)
            num_came += len(piece.data)
            if num_came > num_bytes:
                break
        if num_came != num_bytes:
            message = f"the header says {num_bytes} bytes; {num_came} came"
            raise InvalidRequestError(message, field="header.num_bytes", limit=num_bytes, value=num_came)
        return generation_pb2.UploadMediaResponse(upload_id=self._known_media.uploaded(digest.digest()), expires_s=60)

    async def Embed(self, request: generation_pb2.EmbedRequest, context: Context) -> generation_pb2.EmbedResponse:
        return await self._pooled(request, embedded(request), context)

    async def Score(self, request: generation_pb2.ScoreRequest, context: Context) -> generation_pb2.ScoreResponse:
        return await self._pooled(request, scored(request), context)

    async def Classify(self, request: generation_pb2.ClassifyRequest, context: Context) -> generation_pb2.ClassifyResponse:
        return await self._pooled(request, classified(request), context)

    async def _pooled(self, request: PoolingRequest, pooled: tuple[Pooled, mock_pb2.Script | None], context: Context) -> Pooled:
        self._player.check_model(request.model)
        response, script = pooled
        if script is not None:
            await play_fault(script.fault, _num_earlier(), context)
            if script.unknown_field:
                add_unknown_field(response)
        response.MergeFrom(type(response)(**self._head()))
        return response

    async def ListModels(self, request: generation_pb2.ListModelsRequest, context: Context) -> generation_pb2.ListModelsResponse:
        return generation_pb2.ListModelsResponse(models=[self._model])

    async def Describe(
        self, request: generation_pb2.GenerationServiceDescribeRequest, context: Context
    ) -> generation_pb2.GenerationServiceDescribeResponse:
        instance = self._identity.describe(common_pb2.SERVER_STATE_SERVING)
        return generation_pb2.GenerationServiceDescribeResponse(instance=instance, models=[self._model])

    async def GetLoad(self, request: generation_pb2.GetLoadRequest, context: Context) -> generation_pb2.GetLoadResponse:
        """It has no engine and no encoder of its own to tell about."""
        return generation_pb2.GetLoadResponse(instance=self._identity.describe(common_pb2.SERVER_STATE_SERVING))

    def _head(self) -> dict[str, Any]:
        return {"request_id": request_id_var.get(), "model": self._model.name}


def _num_earlier() -> int:
    seen = current_call.get()
    return seen.num_earlier if seen else 0


def _is_final(mode: generation_pb2.OutputMode) -> bool:
    return mode == generation_pb2.OUTPUT_MODE_FINAL


def _fields(part: Part) -> dict[str, Any]:
    return {"choices": part.choices, "usage": part.usage, "timings": part.timings, "media": part.media}


def _marked(response: M, answer: Answer) -> M:
    if answer.script.unknown_field:
        add_unknown_field(response)
    return response


def _send_reports(answer: Answer, context: Context) -> None:
    reports = [report.SerializeToString() for report in answer.media]
    if reports and sum(map(len, reports)) <= _TRAILER_BYTES:
        context.set_trailing_metadata(tuple(("triptych-media-bin", report) for report in reports))
