"""Chat and Complete of GenerationService, whole and streamed, on top of one stream of responses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import TypeVar

import grpc
from triptych.accumulators import merged_choices
from triptych.v1 import (
    detokenize_pb2,
    detokenize_pb2_grpc,
    generation_pb2,
    generation_pb2_grpc,
    preprocess_pb2,
    preprocess_pb2_grpc,
)

from triptych_common.telemetry.logs import request_id_var

Request = generation_pb2.ChatRequest | generation_pb2.CompleteRequest
Responses = AsyncGenerator[generation_pb2.GenerationCallResponse, None]
_Whole = TypeVar("_Whole", generation_pb2.ChatResponse, generation_pb2.CompleteResponse)
_Piece = TypeVar("_Piece", generation_pb2.ChatStreamResponse, generation_pb2.CompleteStreamResponse)
#: The services of a frontend, which a gateway has, too.
SERVICES = (
    generation_pb2.DESCRIPTOR.services_by_name["GenerationService"],
    preprocess_pb2.DESCRIPTOR.services_by_name["PreprocessService"],
    detokenize_pb2.DESCRIPTOR.services_by_name["DetokenizeService"],
)
_MEDIA_TRAILER = "triptych-media-bin"
#: Metadata of more than 8 KiB make calls fail, and other code adds its own metadata.
_MAX_TRAILER_BYTES = 4096


class StageServicer(preprocess_pb2_grpc.PreprocessServiceServicer, detokenize_pb2_grpc.DetokenizeServiceServicer):
    """Single stages of a call: Preprocess and Tokenize of one service, Detokenize and DetokenizeStream of the other."""


def add_services(server: grpc.aio.Server, generation: generation_pb2_grpc.GenerationServiceServicer, stages: StageServicer) -> None:
    """Serve all of SERVICES."""
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(generation, server)
    preprocess_pb2_grpc.add_PreprocessServiceServicer_to_server(stages, server)
    detokenize_pb2_grpc.add_DetokenizeServiceServicer_to_server(stages, server)


class GenerationCalls(generation_pb2_grpc.GenerationServiceServicer, ABC):
    """The four methods that generate text. A service adds where the responses come from."""

    @abstractmethod
    def responses(self, request: Request, context: grpc.aio.ServicerContext, *, is_final_only: bool, is_stream: bool) -> Responses:
        """The responses of a call as they arrive. The last one has the usage. Raises the call's error.

        Args:
            is_final_only: each choice's text comes at once, when it has ended.
            is_stream: whether the client gets the responses one by one.
        """

    @abstractmethod
    def model_name(self, request: Request) -> str:
        """The served name of the model that answers."""

    async def Chat(self, request: generation_pb2.ChatRequest, context: grpc.aio.ServicerContext) -> generation_pb2.ChatResponse:
        return await self._whole(request, context, generation_pb2.ChatResponse)

    async def Complete(
        self, request: generation_pb2.CompleteRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.CompleteResponse:
        return await self._whole(request, context, generation_pb2.CompleteResponse)

    async def ChatStream(
        self, request: generation_pb2.ChatStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.ChatStreamResponse]:
        pieces = self._pieces(request.chat, request.output_mode, context, generation_pb2.ChatStreamResponse)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def CompleteStream(
        self, request: generation_pb2.CompleteStreamRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[generation_pb2.CompleteStreamResponse]:
        pieces = self._pieces(request.complete, request.output_mode, context, generation_pb2.CompleteStreamResponse)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def _whole(self, request: Request, context: grpc.aio.ServicerContext, cls: type[_Whole]) -> _Whole:
        """All output of a call, in one message."""
        new = generation_pb2.GenerationCallResponse()
        async with aclosing(self.responses(request, context, is_final_only=True, is_stream=False)) as responses:
            async for response in responses:
                new.MergeFrom(response)
        _set_media_trailers(context, new.media)
        return cls(
            request_id=request_id_var.get(),
            model=self.model_name(request),
            choices=merged_choices(new.choices),
            usage=new.usage,
            timings=new.timings,
            media=new.media,
        )

    async def _pieces(
        self,
        request: Request,
        mode: generation_pb2.OutputMode,
        context: grpc.aio.ServicerContext,
        cls: type[_Piece],
    ) -> AsyncGenerator[_Piece, None]:
        is_final_only = mode == generation_pb2.OUTPUT_MODE_FINAL
        async with aclosing(self.responses(request, context, is_final_only=is_final_only, is_stream=True)) as responses:
            request_id, model = request_id_var.get(), self.model_name(request)
            async for new in responses:
                piece = cls(request_id=request_id, model=model, choices=new.choices, media=new.media)
                if new.HasField("usage"):
                    piece.usage.CopyFrom(new.usage)
                    piece.timings.CopyFrom(new.timings)
                    _set_media_trailers(context, new.media)
                yield piece


def _set_media_trailers(context: grpc.aio.ServicerContext, reports: Sequence[generation_pb2.MediaReport]) -> None:
    if reports and sum(report.ByteSize() for report in reports) <= _MAX_TRAILER_BYTES:
        entries = tuple((_MEDIA_TRAILER, report.SerializeToString()) for report in reports)
        context.set_trailing_metadata((*(context.trailing_metadata() or ()), *entries))
